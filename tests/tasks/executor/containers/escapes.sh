# What a container tries against its machine. Each line: a name, a bar, and commands that succeed only if it got out.
# HOST_SECRET is a file of the machine, HOST_PORT a listener on its loopback interface, HOST_MARK a word in the
# command line of a process outside. NET_ADDRESS is a server of the public Internet, NET_OWN the machine's own public
# address, where a listener has the port HOST_PORT. ``ask`` sends a request to the proxy: it succeeds on an answer of 200.
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
a public address|nc -w 2 "$NET_ADDRESS" 443 < /dev/null || nc -w 2 "$NET_ADDRESS" 80 < /dev/null
a name service|nc -w 2 "$NET_ADDRESS" 53 < /dev/null || tftp -g -r x -l /scratch/x "$NET_ADDRESS" 53
the proxies of other containers|nc -w 2 127.0.0.2 3128 < /dev/null || nc -w 2 "$NET_OWN" 3128 < /dev/null
the address of a cloud's metadata|nc -w 2 169.254.169.254 80 < /dev/null
metadata by the proxy|ask CONNECT 169.254.169.254:80 || ask GET http://169.254.169.254/latest/meta-data
metadata by a name|ask CONNECT meta.example.net:443
the machine by the proxy|ask CONNECT "127.0.0.1:$HOST_PORT" || ask CONNECT "localhost:$HOST_PORT" || ask CONNECT "2130706433:$HOST_PORT"
the machine by a name|ask CONNECT "host.example.net:$HOST_PORT"
the machine by its public address|ask CONNECT "own.example.net:$HOST_PORT" || ask CONNECT "$NET_OWN:$HOST_PORT"
a neighbour by a name|ask CONNECT home.example.net:443
a name that is not named|ask CONNECT other.example.org:443
a port that is not named|ask CONNECT files.example.net:22
a plain request to the machine|ask GET "http://host.example.net:$HOST_PORT/" || ask GET "http://127.0.0.1:$HOST_PORT/"
a giant head|( printf 'CONNECT files.example.net:443 HTTP/1.1\r\nHost: x\r\nX: '; head -c 100000 /dev/zero | tr '\0' x; printf '\r\n\r\n' ) | nc -w 5 127.0.0.1 3128 | grep ' 200 '
a tunnel without TLS|( printf 'CONNECT files.example.net:443 HTTP/1.1\r\nHost: x\r\n\r\n'; sleep 1; printf 'GET / HTTP/1.1\r\nHost: x\r\n\r\n'; sleep 1 ) | nc -w 5 127.0.0.1 3128 | grep -v -E '^HTTP/1.1 200 connected|^.?$'
