/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/* What the driver and the program that plans for it say to each other: ioctls of /dev/anyprobe. */
#ifndef ANYPROBE_H
#define ANYPROBE_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define ANYPROBE_ABI 6
#define ANYPROBE_MAX_LENGTH 32	/* bytes of one write: a jump, and what is left of the last instruction that it displaces */
#define ANYPROBE_MAX_WRITES 1024	/* of one batch, for which all processors stand still once */
#define ANYPROBE_MAX_TRIES 16	/* of one batch; text is locked meanwhile */
#define ANYPROBE_MAX_SHARED (1u << 30)
#define ANYPROBE_MAX_PERCPU (32u << 10)
#define ANYPROBE_COUNTERS 256	/* of 8 bytes per processor, in reach of a gs: displacement of 32 bits; who asks first has them */

/* Why a batch was refused; `failed` is the index of the write (or of the fix-up, where the reason says so). */
enum anyprobe_reason {
	ANYPROBE_DONE,
	ANYPROBE_BAD_WRITE,	/* EINVAL: length, order, or bits that mean nothing */
	ANYPROBE_NOT_TEXT,	/* EFAULT: no code of the kernel or of a module that is live */
	ANYPROBE_NOT_BOUNDARY,	/* EINVAL: the write does not begin and end, or its boundaries are not, where instructions do */
	ANYPROBE_CALL_INSIDE,	/* EINVAL: a call that is not the last displaced instruction: its return address would be inside */
	ANYPROBE_OLD_BYTES,	/* ESTALE: other bytes are there than the plan says */
	ANYPROBE_OVERLAP,	/* EBUSY: a part of what is written already, or by another client */
	ANYPROBE_BUSY,		/* EAGAIN: a task is inside what is to be written */
	ANYPROBE_FORBIDDEN,	/* EPERM: entry code, noinstr, kprobes' blacklist, what NMIs run, the driver itself */
	ANYPROBE_STATIC_KEY,	/* EPERM, as all below: the kernel itself changes these bytes */
	ANYPROBE_STATIC_CALL,
	ANYPROBE_FTRACE,
	ANYPROBE_ALTERNATIVE,
	ANYPROBE_KPROBE,
	ANYPROBE_BUG,		/* the ud2 of a BUG or WARN, found by its address */
	ANYPROBE_FAULTS,	/* an instruction with an exception fix-up, and the batch has none for its copy */
	ANYPROBE_BAD_FIXUP,	/* EINVAL: the copy is not in the client's patches or not after the one before, or the original has no fix-up */
	ANYPROBE_STRAY,		/* EINVAL: what is written is neither a branch to the client's patches, nor a nop, nor what was there */
	ANYPROBE_LANDING_PAD,	/* EPERM: indirect branches land on this endbr64 */
};

struct anyprobe_info {
	__u32 abi, processors;
	__u64 patches, patches_size;	/* where patches lie, in reach of all text */
	__u64 live;			/* writes in force, of all clients */
};

/* One piece of text. Bit n of boundaries: an instruction of the old text begins n bytes after the address (n > 0). */
struct anyprobe_write {
	__u64 address;
	__u32 length, boundaries;
	__u8 old_bytes[ANYPROBE_MAX_LENGTH], new_bytes[ANYPROBE_MAX_LENGTH];
};

/* A copy of an instruction that may fault: what is to happen is what happens at the original. */
struct anyprobe_fixup {
	__u64 copy, original;
};

struct anyprobe_batch {
	__u64 writes, fixups;		/* user addresses of arrays; writes in ascending order */
	__u32 write_count, fixup_count;
	__u32 tries;			/* how often to look at once whether no task is inside, a millisecond apart */
	__u32 failed, reason;		/* out */
	__u32 tried;			/* out */
	__u64 stopped_ns;		/* out: how long the machine stood in the last try */
	__u64 reasons;			/* user address of a byte for each write, what is found before the stop; or 0 */
};

struct anyprobe_region {
	__u64 size;			/* of patches; rounded up to pages */
	__u64 address;			/* out */
};

struct anyprobe_memory {
	__u64 size;
	__u64 address;			/* out: of shared memory, the kernel's address; of per-CPU memory, its gs: offset */
	__u64 offset;			/* out: of shared memory, what to map */
};

struct anyprobe_counts {
	__u64 address;			/* a gs: offset in memory of this client */
	__u64 size;			/* bytes of one processor */
	__u64 values;			/* user address of size * processors bytes */
};

/* The writes in force, of all clients, as far as there is room for them; boundaries are not told. */
struct anyprobe_changes {
	__u64 writes;			/* user address of an array */
	__u32 room, count;		/* count: out, how many there are */
};

#define ANYPROBE_INFO _IOR('y', 1, struct anyprobe_info)
#define ANYPROBE_RESERVE _IOWR('y', 2, struct anyprobe_region)
#define ANYPROBE_SHARE _IOWR('y', 3, struct anyprobe_memory)
#define ANYPROBE_PERCPU _IOWR('y', 4, struct anyprobe_memory)
#define ANYPROBE_COUNTS _IOW('y', 5, struct anyprobe_counts)
#define ANYPROBE_APPLY _IOWR('y', 6, struct anyprobe_batch)
#define ANYPROBE_CHANGES _IOWR('y', 7, struct anyprobe_changes)

#endif
