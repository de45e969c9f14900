# shellcheck shell=bash disable=SC2154 # $cgroup is set by node.sh
# The cgroup of a node, on cgroup v1. On v2 the kubelet creates it.

make_cgroups() {
  local controller
  [ -d /sys/fs/cgroup/cpu ] || return 0
  for controller in cpu cpuacct cpuset memory devices freezer blkio pids hugetlb systemd; do
    [ ! -d /sys/fs/cgroup/$controller ] || mkdir -p "/sys/fs/cgroup/$controller/$cgroup"
  done
  # A new cpuset is empty, and admits no process.
  cat /sys/fs/cgroup/cpuset/cpuset.cpus >"/sys/fs/cgroup/cpuset/$cgroup/cpuset.cpus"
  cat /sys/fs/cgroup/cpuset/cpuset.mems >"/sys/fs/cgroup/cpuset/$cgroup/cpuset.mems"
}

# A cgroup can be removed once its last process has been reaped.
remove_cgroups() {
  local folder attempt
  for folder in /sys/fs/cgroup/"$cgroup" /sys/fs/cgroup/*/"$cgroup"; do
    for attempt in 1 2 3 4 5; do
      [ -d "$folder" ] || break
      find "$folder" -depth -type d -exec rmdir {} \; 2>/dev/null || sleep "0.$attempt"
    done
  done
}
