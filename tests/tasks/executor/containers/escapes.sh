# What a container tries against its machine. Each line: a name, a bar, and commands that succeed only if it got out.
# HOST_SECRET is a file of the machine, HOST_PORT a listener on its loopback interface, HOST_MARK a word in the
# command line of a process outside.
a file of the machine|cat "$HOST_SECRET"
the machine's files by dots|cat "../../../../../../..$HOST_SECRET"
the machine's files by the first process|cat "/proc/1/root$HOST_SECRET"
the engine's socket|ls /var/run/docker.sock /run/docker.sock "$HOST_SOCKET" | grep .
write in the root|touch /escape
write in a program|: >> /bin/busybox
write in an input|: >> /input/file
remount the root|mount -o remount,rw /
a mount|mount -t tmpfs none /scratch/home
the disks of the machine|mount -t proc none /scratch/home
another root|chroot /scratch/tmp true || chroot / true
a device file|mknod /scratch/disk b 254 0
a disk|cat /dev/vda /dev/sda | head -c 1 | grep .
a loop device|touch /scratch/loop && losetup -f /scratch/loop
the memory of the kernel|head -c 1 /proc/kcore | grep .
the log of the kernel|dmesg | grep .
a setting of the kernel|cat /proc/sys/kernel/core_pattern > /scratch/p && cat /scratch/p > /proc/sys/kernel/core_pattern
a setting of memory|echo 0 > /proc/sys/vm/drop_caches
the keys of the kernel|echo h > /proc/sysrq-trigger
a group of control|mkdir /sys/fs/cgroup/escape /sys/fs/cgroup/memory/escape
a limit of its own|echo -1 > /sys/fs/cgroup/memory/memory.limit_in_bytes || echo max > /sys/fs/cgroup/memory.max
a module of the kernel|touch /scratch/none.ko && insmod /scratch/none.ko
processes of the machine|grep -l "$HOST_MARK" /proc/[0-9]*/cmdline
a namespace of the machine|nsenter -t 1 -m -n -p true
a new user namespace|unshare -U true
a new network|unshare -n true
a setuid program|test "$(id -u)" != 0 && su root -c true
capabilities|grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | grep -v '0000000000000000'
capabilities of a setuid program|su root -c "grep CapEff /proc/self/status" | grep -v '0000000000000000'
another owner|touch /scratch/o && chown 4242 /scratch/o
another user|test "$(id -u)" != 0 && setuidgid root true
a process of another user|test "$(id -u)" = 0 && setuidgid nobody true
the machine's loopback|nc -w 2 127.0.0.1 "$HOST_PORT" < /dev/null
an interface beside loopback|ls /sys/class/net | grep -v '^lo$'
a route|grep -v Iface /proc/net/route | grep .
a new interface|ip link add escape type dummy
the name of the machine|hostname "$(hostname)"
the clock|! date -s "$(date '+%Y-%m-%d %H:%M:%S')" 2>&1 | grep "can't set"
a higher priority|renice -n -5 -p $$
swap|touch /scratch/swap && swapon /scratch/swap
the folder of its socket|touch /run/dekube/escape || rm -f /run/dekube/job.sock || mv /run/dekube/job.sock /scratch/s
the sockets of other containers|ls -a /run/dekube | grep -v -E '^(\.|\.\.|job\.sock)$'
another socket|find / -xdev -type s 2>/dev/null | grep -v '^/run/dekube/job.sock$' | grep .
