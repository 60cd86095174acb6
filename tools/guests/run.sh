# The second half of the guest's start, in the host's file system: run the command, say its status, turn off.
. /run/guest/environment
: >/run/guest/started
ip link set lo up 2>/dev/null || busybox ip link set lo up
mount --bind "$GUEST_MODULES" /lib/modules
port() { for each in /sys/class/virtio-ports/*; do grep -qx "$1" "$each/name" && echo "/dev/${each##*/}"; done; }
# pipes and not the ports themselves, which only one may open: programs write to /dev/stdout
mkfifo /run/out /run/err
cat /run/out >"$(port out)" &
out=$!
cat /run/err >"$(port err)" &
err=$!
exec 3>/run/out 4>/run/err
cd "$GUEST_DIRECTORY" || exit
setsid /bin/bash /run/guest/command </dev/null >&3 2>&4 3>&- 4>&-
status=$?
exec 3>&- 4>&-
(sleep 3 && kill $out $err) 2>/dev/null & # a process that the command has left may hold the pipes
wait $out $err
echo $status >/run/guest/status
sync
poweroff -f 2>/dev/null || busybox poweroff -f
