#!/bin/busybox sh
# The guest's first program: the host's file system read-only under an overlay, /tmp shared, then run.sh of this run.
export PATH=/bin
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module" || $b echo "insmod $module failed"; done </modules/order
o=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o ro,cache=loose,$o root /host || $b poweroff -f
$b mount -t tmpfs -o size=70% tmpfs /over
$b mkdir /over/upper /over/work
$b mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work overlay /new
for each in dev proc sys; do $b mount --move /$each /new/$each; done
$b mount -t tmpfs tmpfs /new/run
$b mkdir -p /new/run/guest /new/run/tmp /new/dev/shm /new/dev/pts /new/lib/modules
$b chmod 1777 /new/run/tmp
$b mount -t tmpfs tmpfs /new/dev/shm
$b mount -t devpts devpts /new/dev/pts
$b mount -t 9p -o rw,cache=mmap,$o tmp /new/tmp
$b mount -t 9p -o rw,$o run /new/run/guest
$b mount -t debugfs debugfs /new/sys/kernel/debug
$b mount -t tracefs tracefs /new/sys/kernel/tracing
$b mount -t bpf bpf /new/sys/fs/bpf
$b mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
exec $b switch_root /new /bin/sh /run/guest/run.sh
