# shellcheck shell=sh
# Runs the programs of one control plane, and stops them when the test process that started this shell has exited for
# whatever reason: the shell reads orders from a pipe that only that process writes to, and the pipe is closed with it.
#
# $1 is the folder of the control plane, which is removed at the end. Each further argument names a program, in start
# order. In the folder, NAME.command is the script that runs a program, NAME.log its output, NAME.pid its process id,
# and NAME.ended its exit status once it has exited. An order is a line: "start NAME…", or "stop", which stops all
# programs. The file "orders" contains the number of orders that were carried out.
dir=$1
shift

reversed=
for name in "$@"; do
  reversed="$name $reversed"
done

run() {
  sh "$dir/$1.command" >>"$dir/$1.log" 2>&1 &
  echo $! >"$dir/$1.pid"
  wait $!
  # Moved into place, so that a reader never finds the file empty.
  echo $? >"$dir/$1.ending"
  mv "$dir/$1.ending" "$dir/$1.ended"
}

start() {
  for name in "$@"; do
    rm -f "$dir/$name.pid" "$dir/$name.ended"
    run "$name" </dev/null &
    until [ -s "$dir/$name.pid" ]; do sleep 0.01; done
  done
}

# Sends SIGTERM, and SIGKILL after ten seconds. Gives up after fifteen.
end() {
  [ -s "$dir/$1.pid" ] || return 0
  waited=0
  until [ -e "$dir/$1.ended" ]; do
    [ $waited -ne 0 ] || kill -TERM "$(cat "$dir/$1.pid")"
    [ $waited -ne 200 ] || kill -KILL "$(cat "$dir/$1.pid")"
    [ $waited -lt 300 ] || return 0
    waited=$((waited + 1))
    sleep 0.05
  done
}

stop() {
  for name in $reversed; do
    end "$name"
  done
}

finish() {
  stop
  rm -rf "$dir"
}

trap finish EXIT
trap 'exit 143' HUP INT TERM

orders=0
while read -r order names; do
  # shellcheck disable=SC2086 # several names, none with a space in it
  case $order in
    start) start $names ;;
    stop) stop ;;
  esac
  orders=$((orders + 1))
  echo $orders >"$dir/orders"
done
