# shellcheck shell=bash
# Sourced by the other scripts: if an argument is --help or -h, prints the comment at the head of the script, and exits.

for argument in "$@"; do
  case $argument in
    --help | -h)
      sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$0"
      exit
      ;;
  esac
done
