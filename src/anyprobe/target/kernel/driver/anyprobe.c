// SPDX-License-Identifier: GPL-2.0
/*
 * anyprobe: memory in reach of the kernel's text, and batches of writes to that text that happen whole or not at all.
 * All planning is done in user space; what is here checks that a wrong plan cannot hurt the kernel's own patching.
 */
#include <linux/bug.h>
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/extable.h>
#include <linux/ftrace.h>
#include <linux/jump_label.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/objtool.h>
#include <linux/percpu.h>
#include <linux/sched/signal.h>
#include <linux/security.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/static_call.h>
#include <linux/stop_machine.h>
#include <linux/suspend.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <asm/insn.h>
#include <asm/sync_core.h>
#include <asm/unwind.h>
#include "anyprobe.h"

#define PATCHES (8u << 20)
#define MAX_FIXUPS 4096
#define LONGEST_OPTIMIZED 20	/* a jump in place of a kprobe covers at most this much */

/* In the module's own text: there the kernel looks for exception fix-ups. */
asm(".pushsection .text, \"ax\"\n.balign 4096\nanyprobe_patches:\n" ANNOTATE_NOENDBR
    ".nops 8388608\n.popsection\n");
extern u8 anyprobe_patches[PATCHES];
static DEFINE_PER_CPU(u64[ANYPROBE_COUNTERS], anyprobe_counters);

/*
 * Functions that the kernel does not export. Static calls are direct ones: on a processor with IBT an indirect call
 * of a function whose address is taken nowhere ends in a fault.
 */
#define KERNEL_FUNCTION(result, name, ...) \
	static result none_##name(__VA_ARGS__) { return (result)0; } \
	DEFINE_STATIC_CALL(to_##name, none_##name)
KERNEL_FUNCTION(void *, text_poke_copy, void *, const void *, size_t);
KERNEL_FUNCTION(int, core_kernel_text, unsigned long);
KERNEL_FUNCTION(struct task_struct *, idle_task, int);
KERNEL_FUNCTION(int, stop_machine_cpuslocked, cpu_stop_fn_t, void *, const struct cpumask *);
KERNEL_FUNCTION(int, jump_label_text_reserved, void *, void *);
KERNEL_FUNCTION(int, static_call_text_reserved, void *, void *);
KERNEL_FUNCTION(int, ftrace_text_reserved, const void *, const void *);
KERNEL_FUNCTION(int, alternatives_text_reserved, void *, void *);
KERNEL_FUNCTION(bool, within_kprobe_blacklist, unsigned long);
KERNEL_FUNCTION(struct kprobe *, get_kprobe, void *);
KERNEL_FUNCTION(struct bug_entry *, find_bug, unsigned long);
KERNEL_FUNCTION(const struct exception_table_entry *, search_exception_tables, unsigned long);
KERNEL_FUNCTION(int, insn_decode, struct insn *, const void *, int, enum insn_mode);
KERNEL_FUNCTION(int, kallsyms_lookup_size_offset, unsigned long, unsigned long *, unsigned long *);
KERNEL_FUNCTION(struct module *, __module_text_address, unsigned long);
KERNEL_FUNCTION(unsigned long, kallsyms_lookup_name, const char *);
static void none_lock(void) { }
DEFINE_STATIC_CALL(to_jump_label_lock, none_lock);
DEFINE_STATIC_CALL(to_jump_label_unlock, none_lock);
static struct mutex *kernel_text_mutex;

/*
 * Code that NMIs run before anything could refuse it, what a stop needs, and what runs while gs does not lead to the
 * processor's memory: processors that come up, and what sets gs. Ranges may not be named by kprobes' blacklist alone.
 */
static const char *const forbidden_functions[] = {
	"exc_nmi", "default_do_nmi", "nmi_handle", "nmi_cpu_backtrace", "nmi_cpu_backtrace_handler", "perf_event_nmi_handler",
	"crash_nmi_callback", "arch_trigger_cpumask_backtrace", "text_poke", "text_poke_copy", "text_poke_bp", "text_poke_sync",
	"stop_machine_cpuslocked", "multi_cpu_stop", "cpu_stopper_thread", "fixup_exception", "search_exception_tables",
	"startup_64", "secondary_startup_64", "secondary_startup_64_no_verify", "verify_cpu", "sev_verify_cbit", "start_cpu0",
	"load_percpu_segment", "switch_to_new_gdt", "switch_gdt_and_percpu_base", "native_write_msr", "native_load_gs_index",
	"machine_kexec", "relocate_kernel", "wakeup_long64", "__restore_processor_state", "restore_processor_state",
};
static const char *const forbidden_ranges[][2] = {
	{ "__entry_text_start", "__entry_text_end" }, { "__noinstr_text_start", "__noinstr_text_end" },
	{ "__kprobes_text_start", "__kprobes_text_end" }, { "__cpuidle_text_start", "__cpuidle_text_end" },
	{ "__indirect_thunk_start", "__indirect_thunk_end" }, { "_sinittext", "_einittext" },
};
static struct { unsigned long start, end; } forbidden[ARRAY_SIZE(forbidden_functions) + ARRAY_SIZE(forbidden_ranges)];
static int forbidden_count;

/* What a client has; freed when no task is in its patches any more. */
struct client {
	struct list_head list;		/* among those that are gone and still have a task in their patches */
	DECLARE_BITMAP(pages, PATCHES >> PAGE_SHIFT);	/* of patches */
	struct memory { void *address; void __percpu *percpu; u64 size; } memory[256];
	int memories;
};

/* A write in force. In ascending order of addresses. */
struct change { unsigned long address; u32 length; struct client *client; u8 original[ANYPROBE_MAX_LENGTH], now[ANYPROBE_MAX_LENGTH]; };
static struct change *changes;
static u32 change_count;

static DEFINE_MUTEX(lock);		/* of all that is below, and above */
static DECLARE_BITMAP(used_pages, PATCHES >> PAGE_SHIFT);
static DECLARE_BITMAP(used_counters, ANYPROBE_COUNTERS);
static LIST_HEAD(leaving);
static struct exception_table_entry tables[2][MAX_FIXUPS];
static int table_used;
static struct exception_table_entry *own_table;
static unsigned int own_entries;

/* --- what may be written --- */

/* Return the bytes of text as they were before any write of ours. */
static void original_text(u8 *out, unsigned long address, u32 length)
{
	u32 low = 0, high = change_count;

	memcpy(out, (void *)address, length);
	while (low < high) {		/* the first change that ends after the address */
		u32 middle = (low + high) / 2;

		if (changes[middle].address + changes[middle].length > address)
			high = middle;
		else
			low = middle + 1;
	}
	for (; low < change_count && changes[low].address < address + length; low++) {
		struct change *c = &changes[low];
		long shift = (long)(c->address - address);
		u32 i;

		for (i = 0; i < c->length; i++)
			if (shift + i < length)
				out[shift + i] = c->original[i];
	}
}

/* Decode a function from its start, as kprobes do, and compare with what the plan says. */
static enum anyprobe_reason check_boundaries(struct anyprobe_write *w)
{
	unsigned long size, offset, at, end = w->address + w->length;
	u8 bytes[MAX_INSN_SIZE];
	struct insn insn;
	u32 boundaries = 0;
	bool call = false;

	if (!static_call(to_kallsyms_lookup_size_offset)(w->address, &size, &offset))
		return ANYPROBE_NOT_TEXT;
	if (offset + w->length > size)
		return ANYPROBE_NOT_BOUNDARY;
	for (at = w->address - offset; at < end; at += insn.length) {
		if (at > w->address)
			boundaries |= 1u << (at - w->address);
		if (at > w->address && call)
			return ANYPROBE_CALL_INSIDE;
		original_text(bytes, at, min_t(unsigned long, sizeof bytes, w->address - offset + size - at));
		if (static_call(to_insn_decode)(&insn, bytes, sizeof bytes, INSN_MODE_KERN) < 0)
			return ANYPROBE_NOT_BOUNDARY;
		if (at < w->address && at + insn.length > w->address)
			return ANYPROBE_NOT_BOUNDARY;
		call = at >= w->address && (insn.opcode.bytes[0] == 0xe8 ||
			(insn.opcode.bytes[0] == 0xff && (X86_MODRM_REG(insn.modrm.value) & 6) == 2));
	}
	return at == end && boundaries == w->boundaries ? ANYPROBE_DONE : ANYPROBE_NOT_BOUNDARY;
}

static enum anyprobe_reason check_tables(struct anyprobe_write *w, struct anyprobe_fixup *fixups, u32 fixup_count)
{
	void *first = (void *)w->address, *last = (void *)(w->address + w->length - 1);
	unsigned long at;
	u32 i;

	for (i = 0; i < forbidden_count; i++)
		if (w->address < forbidden[i].end && w->address + w->length > forbidden[i].start)
			return ANYPROBE_FORBIDDEN;
	if (within_module(w->address, THIS_MODULE))
		return ANYPROBE_FORBIDDEN;
	if (static_call(to_jump_label_text_reserved)(first, last))
		return ANYPROBE_STATIC_KEY;
	if (static_call(to_static_call_text_reserved)(first, last))
		return ANYPROBE_STATIC_CALL;
	if (static_call(to_ftrace_text_reserved)(first, last))
		return ANYPROBE_FTRACE;
	if (static_call(to_alternatives_text_reserved)(first, last))
		return ANYPROBE_ALTERNATIVE;
	for (at = w->address; at < w->address + w->length; at++) {
		if (static_call(to_within_kprobe_blacklist)(at))
			return ANYPROBE_FORBIDDEN;
		if (static_call(to_find_bug)(at))
			return ANYPROBE_BUG;
		if (!static_call(to_search_exception_tables)(at))
			continue;
		for (i = 0; i < fixup_count && fixups[i].original != at; i++)
			;
		if (i == fixup_count)
			return ANYPROBE_FAULTS;
	}
	for (at = w->address - LONGEST_OPTIMIZED + 1; at < w->address + w->length; at++) {
		struct kprobe *probe;

		preempt_disable();
		probe = static_call(to_get_kprobe)((void *)at);
		preempt_enable();
		if (probe)
			return ANYPROBE_KPROBE;
	}
	return ANYPROBE_DONE;
}

static bool is_live_text(unsigned long address, u32 length)
{
	struct module *module;
	bool live;

	if (static_call(to_core_kernel_text)(address))
		return static_call(to_core_kernel_text)(address + length - 1);
	preempt_disable();
	module = static_call(to___module_text_address)(address);
	live = module && module->state == MODULE_STATE_LIVE && within_module(address + length - 1, module);
	preempt_enable();
	return live;
}

/* --- the stop --- */

static const int errors[] = {
	[ANYPROBE_BAD_WRITE] = -EINVAL, [ANYPROBE_NOT_TEXT] = -EFAULT, [ANYPROBE_NOT_BOUNDARY] = -EINVAL,
	[ANYPROBE_CALL_INSIDE] = -EINVAL, [ANYPROBE_OLD_BYTES] = -ESTALE, [ANYPROBE_OVERLAP] = -EBUSY,
	[ANYPROBE_BUSY] = -EAGAIN, [ANYPROBE_FORBIDDEN] = -EPERM, [ANYPROBE_STATIC_KEY] = -EPERM,
	[ANYPROBE_STATIC_CALL] = -EPERM, [ANYPROBE_FTRACE] = -EPERM, [ANYPROBE_ALTERNATIVE] = -EPERM,
	[ANYPROBE_KPROBE] = -EPERM, [ANYPROBE_BUG] = -EPERM, [ANYPROBE_FAULTS] = -EPERM, [ANYPROBE_BAD_FIXUP] = -EINVAL,
};

struct write_now { unsigned long address; u32 length; const u8 *old, *new_; u8 *alias; bool skip; };
struct batch {
	struct write_now *writes;
	u32 count, inside_count;
	unsigned long *inside;		/* where no task may be, in ascending order */
	struct client *of;		/* a client whose patches no task may be in; NULL if that does not matter */
	bool lenient;			/* what has other bytes is left out instead of refused */
	struct exception_table_entry *table;	/* put in force; NULL: none */
	u32 table_entries;
	atomic_t arrived;
	bool done;
	u32 failed;
	enum anyprobe_reason reason;
	u64 took_ns;
};

static bool is_inside(struct batch *b, unsigned long word)
{
	u32 low = 0, high = b->inside_count;

	if (b->of && word >= (unsigned long)anyprobe_patches && word < (unsigned long)anyprobe_patches + PATCHES)
		return test_bit((word - (unsigned long)anyprobe_patches) >> PAGE_SHIFT, b->of->pages);
	if (!high || word < b->inside[0] || word > b->inside[high - 1])
		return false;
	while (low < high) {
		u32 middle = (low + high) / 2;

		if (b->inside[middle] < word)
			low = middle + 1;
		else
			high = middle;
	}
	return low < b->inside_count && b->inside[low] == word;
}

/* Does the unwinder find a task inside? What it cannot unwind to the end counts as inside. */
static bool unwinds_inside(struct task_struct *t, struct batch *b)
{
	struct unwind_state state;

	for (unwind_start(&state, t, NULL, NULL); !unwind_done(&state); unwind_next_frame(&state)) {
		struct pt_regs *regs = unwind_get_entry_regs(&state, NULL);
		unsigned long address;

		if (unwind_error(&state))
			return true;
		if (regs && user_mode(regs))
			return false;
		address = unwind_get_return_address(&state);
		if (!address || is_inside(b, address))
			return true;
	}
	return unwind_error(&state);
}

/*
 * Is a saved pc or a return address on a task's kernel stack one of those? Every word counts at first. Frames that were
 * left long ago may have such a word too, in a task that sleeps for days, or in this very one: then the unwinder decides.
 */
static bool has_word_inside(struct task_struct *t, struct batch *b)
{
	unsigned long *p = t->stack, *end = p + THREAD_SIZE / sizeof *p, sp = t->thread.sp;

	if (!p || !refcount_read(&t->stack_refcount))
		return false;
	if (!t->on_cpu && sp >= (unsigned long)p && sp < (unsigned long)end)
		p = (unsigned long *)(sp & ~7ul);
	for (; p < end; p++)
		if (is_inside(b, READ_ONCE_NOCHECK(*p)))
			return t->on_cpu || unwinds_inside(t, b);
	return false;
}

static bool is_any_inside(struct batch *b)
{
	struct task_struct *group, *t;
	int cpu;

	if (!b->inside_count && !b->of)
		return false;
	for_each_process_thread(group, t)
		if (has_word_inside(t, b))
			return true;
	for_each_online_cpu(cpu)
		if (has_word_inside(static_call(to_idle_task)(cpu), b))
			return true;
	return false;
}

static void write_all(struct batch *b)
{
	u32 i;

	for (i = 0; i < b->count; i++) {
		struct write_now *w = &b->writes[i];

		w->skip = memcmp((void *)w->address, w->old, w->length) != 0;
		if (w->skip && !b->lenient) {
			b->failed = i;
			b->reason = ANYPROBE_OLD_BYTES;
			return;
		}
	}
	b->reason = is_any_inside(b) ? ANYPROBE_BUSY : ANYPROBE_DONE;
	if (b->reason != ANYPROBE_DONE)
		return;
	if (b->table) {			/* before a copy can run */
		WRITE_ONCE(THIS_MODULE->extable, b->table);
		WRITE_ONCE(THIS_MODULE->num_exentries, b->table_entries);
	}
	for (i = 0; i < b->count; i++)
		if (!b->writes[i].skip)
			memcpy(b->writes[i].alias, b->writes[i].new_, b->writes[i].length);
}

/* Every processor runs this with interrupts off; the first writes, all then drop what they have fetched of old text. */
static int in_stop(void *data)
{
	struct batch *b = data;

	if (atomic_inc_return(&b->arrived) == 1) {
		u64 began = ktime_get_ns();

		write_all(b);
		b->took_ns = ktime_get_ns() - began;
		smp_store_release(&b->done, true);
	} else {
		while (!smp_load_acquire(&b->done))
			cpu_relax();
	}
	sync_core();
	return 0;
}

static struct page *page_of(unsigned long address)
{
	return static_call(to_core_kernel_text)(address) ? virt_to_page((void *)address) : vmalloc_to_page((void *)address);
}

/* Map the pages of all writes once more, writable: in the stop a write is then a copy of some bytes. */
static void *map_aliases(struct batch *b)
{
	struct page **pages = kvmalloc_array(2 * b->count + 1, sizeof *pages, GFP_KERNEL);
	unsigned long last = 0;
	u32 i, count = 0;
	void *base;

	if (!pages)
		return NULL;
	for (i = 0; i < b->count; i++) {
		unsigned long first = b->writes[i].address & PAGE_MASK, end = (b->writes[i].address + b->writes[i].length - 1) & PAGE_MASK;

		for (; first <= end; first += PAGE_SIZE)
			if (first != last || !count) {
				/* a write over a page's end follows one on that page: pages are asked for in order */
				pages[count++] = page_of(first);
				last = first;
			}
		b->writes[i].alias = (u8 *)(((unsigned long)(count - 1) << PAGE_SHIFT) + offset_in_page(b->writes[i].address)
			- (((b->writes[i].address ^ (b->writes[i].address + b->writes[i].length - 1)) & PAGE_MASK) ? PAGE_SIZE : 0));
	}
	base = vmap(pages, count, VM_MAP, PAGE_KERNEL);
	kvfree(pages);
	for (i = 0; base && i < b->count; i++)
		b->writes[i].alias += (unsigned long)base;
	return base;
}

/* Called with the locks of text. */
static long stop_and_write(struct batch *b)
{
	void *aliases = b->count ? map_aliases(b) : NULL;

	if (b->count && !aliases)
		return -ENOMEM;
	atomic_set(&b->arrived, 0);
	b->done = false;
	static_call(to_stop_machine_cpuslocked)(in_stop, b, cpu_online_mask);
	vunmap(aliases);
	return errors[b->reason];
}

static void lock_text(void)
{
	cpus_read_lock();		/* the kernel's own order, see arch_jump_label_transform and kprobes */
	static_call(to_jump_label_lock)();
	mutex_lock(kernel_text_mutex);
}

static void unlock_text(void)
{
	mutex_unlock(kernel_text_mutex);
	static_call(to_jump_label_unlock)();
	cpus_read_unlock();
}

/* --- batches --- */

static unsigned long insn_of(const struct exception_table_entry *e)
{
	return (unsigned long)&e->insn + e->insn;
}

static int compare_fixups(const void *a, const void *b)
{
	unsigned long x = insn_of(a), y = insn_of(b);

	return x < y ? -1 : x > y;
}

/* swap for sort(): the members are relative to where an entry lies */
static void swap_fixups(void *a, void *b, int size)
{
	struct exception_table_entry *x = a, *y = b, old = *x;
	int distance = b - a;

	x->insn = y->insn + distance;
	x->fixup = y->fixup + distance;
	x->data = y->data;
	y->insn = old.insn - distance;
	y->fixup = old.fixup - distance;
	y->data = old.data;
}

static void put_entry(struct exception_table_entry *to, unsigned long insn, const struct exception_table_entry *from)
{
	to->insn = insn - (unsigned long)&to->insn;
	to->fixup = (unsigned long)&from->fixup + from->fixup - (unsigned long)&to->fixup;
	to->data = from->data;
}

/* Make the table of a batch: what is in force, without what lies in the patches of a client that goes, and what is new. */
static long make_table(struct batch *b, struct client *gone, struct anyprobe_fixup *fixups, u32 count)
{
	struct module *module = THIS_MODULE;
	struct exception_table_entry *table = tables[!table_used];
	u32 i, n = 0;

	for (i = 0; i < module->num_exentries; i++) {
		unsigned long insn = insn_of(&module->extable[i]), page = (insn - (unsigned long)anyprobe_patches) >> PAGE_SHIFT;

		if (gone && page < PATCHES >> PAGE_SHIFT && test_bit(page, gone->pages))
			continue;
		if (n == MAX_FIXUPS)
			return -ENOSPC;
		put_entry(&table[n++], insn, &module->extable[i]);
	}
	for (i = 0; i < count; i++) {
		const struct exception_table_entry *e = static_call(to_search_exception_tables)(fixups[i].original);

		if (n == MAX_FIXUPS)
			return -ENOSPC;
		if (e)
			put_entry(&table[n++], fixups[i].copy, e);
	}
	sort(table, n, sizeof *table, compare_fixups, swap_fixups);
	b->table = table;
	b->table_entries = n;
	return 0;
}

/* Check one write against all tables, and against what is in force; changes are walked along with the writes. */
static enum anyprobe_reason check(struct client *client, struct anyprobe_write *w, u32 *at, struct anyprobe_fixup *fixups, u32 count)
{
	struct change *c;
	enum anyprobe_reason reason;

	while (*at < change_count && changes[*at].address + changes[*at].length <= w->address)
		(*at)++;
	c = *at < change_count && changes[*at].address < w->address + w->length ? &changes[*at] : NULL;
	if (c)		/* one of these again: other bytes, or the original ones; nothing is inside a jump and what fills up */
		return c->address == w->address && c->length == w->length && c->client == client ? ANYPROBE_DONE : ANYPROBE_OVERLAP;
	if (!is_live_text(w->address, w->length))
		return ANYPROBE_NOT_TEXT;
	reason = check_tables(w, fixups, count);
	return reason == ANYPROBE_DONE ? check_boundaries(w) : reason;
}

static enum anyprobe_reason check_fixup(struct client *client, struct anyprobe_fixup *f)
{
	unsigned long page = (f->copy - (unsigned long)anyprobe_patches) >> PAGE_SHIFT;

	return f->copy >= (unsigned long)anyprobe_patches && page < PATCHES >> PAGE_SHIFT && test_bit(page, client->pages) &&
		static_call(to_search_exception_tables)(f->original) ? ANYPROBE_DONE : ANYPROBE_BAD_FIXUP;
}

/* Merge what was written into what is in force; what has its original bytes again is in force no more. */
static void merge(struct change *into, struct client *client, struct write_now *writes, u32 count)
{
	u32 i = 0, j = 0, n = 0;

	while (i < change_count || j < count) {
		struct change c;

		if (j == count || (i < change_count && changes[i].address < writes[j].address)) {
			into[n++] = changes[i++];
			continue;
		}
		if (i < change_count && changes[i].address == writes[j].address) {
			c = changes[i++];
		} else {
			c = (struct change){ .address = writes[j].address, .length = writes[j].length, .client = client };
			memcpy(c.original, writes[j].old, c.length);
		}
		if (!writes[j].skip)
			memcpy(c.now, writes[j].new_, c.length);
		j++;
		if (memcmp(c.now, c.original, c.length))
			into[n++] = c;
	}
	kvfree(changes);
	changes = into;
	change_count = n;
}

static long try_batch(struct client *client, struct anyprobe_batch *io, struct anyprobe_write *writes, struct anyprobe_fixup *fixups,
		      u8 *reasons)
{
	struct batch b = { .count = io->write_count };
	struct change *merged = kvmalloc_array(change_count + io->write_count + 1, sizeof *merged, GFP_KERNEL);
	unsigned long end = 0;
	u32 i, bit, at = 0;
	long r = -ENOMEM;

	b.writes = kvcalloc(b.count + 1, sizeof *b.writes, GFP_KERNEL);
	b.inside = kvmalloc_array(b.count + 1, ANYPROBE_MAX_LENGTH * sizeof *b.inside, GFP_KERNEL);
	lock_text();
	if (!merged || !b.writes || !b.inside)
		goto out;
	io->reason = ANYPROBE_DONE;
	for (i = 0; i < io->fixup_count && io->reason == ANYPROBE_DONE; i++)
		io->reason = check_fixup(client, &fixups[i]);
	io->failed = i ? i - 1 : 0;
	for (i = 0; i < b.count && (io->reason == ANYPROBE_DONE || reasons); i++) {
		struct anyprobe_write *w = &writes[i];
		enum anyprobe_reason reason = ANYPROBE_BAD_WRITE;

		if (w->length && w->length <= ANYPROBE_MAX_LENGTH && w->address >= end && w->address + w->length >= w->address &&
		    !(w->boundaries & 1) && (w->length == 32 || !(w->boundaries >> w->length)))
			reason = check(client, w, &at, fixups, io->fixup_count);
		if (reasons)
			reasons[i] = reason;
		if (reason != ANYPROBE_DONE) {
			if (io->reason == ANYPROBE_DONE) {
				io->failed = i;
				io->reason = reason;
			}
			if (reason == ANYPROBE_BAD_WRITE)
				break;
			continue;
		}
		end = w->address + w->length;
		b.writes[i] = (struct write_now){ w->address, w->length, w->old_bytes, w->new_bytes };
		if (at < change_count && changes[at].address == w->address)
			continue;
		for (bit = 1; bit < w->length; bit++)
			if (w->boundaries >> bit & 1)
				b.inside[b.inside_count++] = w->address + bit;
	}
	r = errors[io->reason];
	if (r)
		goto out;
	if (io->fixup_count) {
		r = make_table(&b, NULL, fixups, io->fixup_count);
		if (r)
			goto out;
	}
	r = stop_and_write(&b);
	io->reason = b.reason;
	io->failed = b.failed;
	io->stopped_ns = b.took_ns;
	if (!r) {
		if (b.table)
			table_used = !table_used;
		merge(merged, client, b.writes, b.count);
		merged = NULL;
	}
out:
	unlock_text();
	kvfree(merged);
	kvfree(b.writes);
	kvfree(b.inside);
	return r;
}

static long apply(struct client *client, struct anyprobe_batch *io)
{
	struct anyprobe_write *writes;
	struct anyprobe_fixup *fixups;
	u8 *reasons = NULL;
	long r = -EFAULT;

	io->failed = io->reason = io->tried = 0;
	if (io->write_count > ANYPROBE_MAX_WRITES || io->fixup_count > MAX_FIXUPS || io->tries > 100000)
		return -E2BIG;
	writes = kvmalloc_array(io->write_count + 1, sizeof *writes, GFP_KERNEL);
	fixups = kvmalloc_array(io->fixup_count + 1, sizeof *fixups, GFP_KERNEL);
	if (io->reasons)
		reasons = kvzalloc(io->write_count + 1, GFP_KERNEL);
	if (!writes || !fixups || (io->reasons && !reasons))
		r = -ENOMEM;
	else if (!copy_from_user(writes, (void __user *)io->writes, io->write_count * sizeof *writes) &&
		 !copy_from_user(fixups, (void __user *)io->fixups, io->fixup_count * sizeof *fixups))
		for (;;) {
			io->tried++;
			r = try_batch(client, io, writes, fixups, reasons);
			if (r != -EAGAIN || io->tried >= io->tries || fatal_signal_pending(current))
				break;
			usleep_range(500, 1500);
		}
	if (reasons && copy_to_user((void __user *)io->reasons, reasons, io->write_count))
		r = r ?: -EFAULT;
	kvfree(reasons);
	kvfree(writes);
	kvfree(fixups);
	return r;
}

/*
 * Take out what a client has written; without one, what all have written in a module. What has other bytes now stays,
 * and with it the client's patches.
 */
static long restore(struct client *client, struct module *module)
{
	struct batch b = { .lenient = true };
	struct change *merged = kvmalloc_array(change_count + 1, sizeof *merged, GFP_KERNEL);
	u32 i, left = 0;
	long r = -ENOMEM;

	b.writes = kvcalloc(change_count + 1, sizeof *b.writes, GFP_KERNEL);
	lock_text();
	if (!merged || !b.writes)
		goto out;
	for (i = 0; i < change_count; i++) {
		struct change *c = &changes[i];

		if (client ? c->client == client : within_module(c->address, module))
			b.writes[b.count++] = (struct write_now){ c->address, c->length, c->now, c->original };
	}
	r = b.count ? stop_and_write(&b) : 0;
	if (r || !b.count)
		goto out;
	for (i = 0; i < b.count; i++)
		left += b.writes[i].skip;
	merge(merged, client, b.writes, b.count);
	merged = NULL;
	r = left ? -ESTALE : 0;
out:
	unlock_text();
	kvfree(merged);
	kvfree(b.writes);
	return r;
}

/* Give up the fix-ups in a client's patches, when no task is in these any more. */
static long leave_patches(struct client *client)
{
	struct batch b = { .of = client };
	long r;

	if (bitmap_empty(client->pages, PATCHES >> PAGE_SHIFT))
		return 0;
	lock_text();
	r = make_table(&b, client, NULL, 0) ?: stop_and_write(&b);
	if (!r)
		table_used = !table_used;
	unlock_text();
	return r;
}

/* --- clients --- */

static bool release(struct client *client)
{
	int i;

	if (restore(client, NULL) || leave_patches(client))	/* tasks leave patches by themselves, once no text leads there */
		return false;
	bitmap_andnot(used_pages, used_pages, client->pages, PATCHES >> PAGE_SHIFT);
	for (i = 0; i < client->memories; i++) {
		struct memory *m = &client->memory[i];
		unsigned long first = ((unsigned long)m->percpu - (unsigned long)&anyprobe_counters) / sizeof(u64);

		vfree(m->address);
		if (m->percpu && first < ANYPROBE_COUNTERS)
			bitmap_clear(used_counters, first, m->size / sizeof(u64));
		else
			free_percpu(m->percpu);
	}
	kvfree(client);
	return true;
}

static void release_leaving(struct work_struct *work);
static DECLARE_DELAYED_WORK(later, release_leaving);
static void release_leaving(struct work_struct *work)
{
	struct client *client, *next;

	mutex_lock(&lock);
	list_for_each_entry_safe(client, next, &leaving, list) {
		list_del(&client->list);
		if (release(client))
			module_put(THIS_MODULE);
		else
			list_add(&client->list, &leaving);
	}
	if (!list_empty(&leaving))
		schedule_delayed_work(&later, HZ / 10);
	mutex_unlock(&lock);
}

static int driver_open(struct inode *inode, struct file *file)
{
	struct client *client;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (security_locked_down(LOCKDOWN_DEV_MEM))
		return -EPERM;
	client = kvzalloc(sizeof *client, GFP_KERNEL);
	file->private_data = client;
	return client ? 0 : -ENOMEM;
}

static int driver_release(struct inode *inode, struct file *file)
{
	struct client *client = file->private_data;

	mutex_lock(&lock);
	if (!release(client)) {
		__module_get(THIS_MODULE);	/* there is one of the open file until this function returns */
		list_add(&client->list, &leaving);
		schedule_delayed_work(&later, HZ / 100);
	}
	mutex_unlock(&lock);
	return 0;
}

static long reserve(struct client *client, struct anyprobe_region *io)
{
	unsigned long pages = DIV_ROUND_UP(io->size, PAGE_SIZE), first;

	if (!io->size || io->size > PATCHES)
		return -EINVAL;
	first = bitmap_find_next_zero_area(used_pages, PATCHES >> PAGE_SHIFT, 0, pages, 0);
	if (first + pages > PATCHES >> PAGE_SHIFT)
		return -ENOSPC;
	bitmap_set(used_pages, first, pages);
	bitmap_set(client->pages, first, pages);
	io->size = pages << PAGE_SHIFT;
	io->address = (unsigned long)anyprobe_patches + (first << PAGE_SHIFT);
	return 0;
}

/* Memory of each processor: of the counters in reach of 32 bits, if enough of these are left. */
static void __percpu *give_counters(u64 size)
{
	unsigned long count = size / sizeof(u64);
	unsigned long first = bitmap_find_next_zero_area(used_counters, ANYPROBE_COUNTERS, 0, count, 0);
	int cpu;

	if (first + count > ANYPROBE_COUNTERS)
		return __alloc_percpu(size, 64);
	bitmap_set(used_counters, first, count);
	for_each_possible_cpu(cpu)
		memset(&per_cpu(anyprobe_counters, cpu)[first], 0, size);
	return (u64 __percpu *)&anyprobe_counters + first;
}

static long give_memory(struct client *client, struct anyprobe_memory *io, bool percpu)
{
	struct memory *m = &client->memory[client->memories];

	if (client->memories == ARRAY_SIZE(client->memory))
		return -ENOSPC;
	if (!io->size || io->size > (percpu ? ANYPROBE_MAX_PERCPU : ANYPROBE_MAX_SHARED))
		return -EINVAL;
	m->size = percpu ? round_up(io->size, 8) : PAGE_ALIGN(io->size);
	if (percpu)
		m->percpu = give_counters(m->size);
	else
		m->address = vmalloc_user(m->size);
	if (!m->percpu && !m->address)
		return -ENOMEM;
	io->size = m->size;
	io->address = percpu ? (unsigned long)m->percpu : (unsigned long)m->address;
	io->offset = (u64)client->memories++ << 32;
	return 0;
}

static long read_counts(struct client *client, struct anyprobe_counts *io)
{
	struct memory *m = client->memory, *end = m + client->memories;
	int cpu, n = 0;

	while (m < end && !(m->percpu && io->address - (unsigned long)m->percpu < m->size))
		m++;
	if (m == end || io->size > m->size - (io->address - (unsigned long)m->percpu))
		return -EINVAL;
	for_each_possible_cpu(cpu)
		if (copy_to_user((void __user *)io->values + n++ * io->size,
				 per_cpu_ptr((void __percpu *)io->address, cpu), io->size))
			return -EFAULT;
	return 0;
}

static long list_changes(struct anyprobe_changes *io)
{
	u32 i;

	for (i = 0; i < change_count && i < io->room; i++) {
		struct change *c = &changes[i];
		struct anyprobe_write w = { .address = c->address, .length = c->length };

		memcpy(w.old_bytes, c->original, c->length);
		memcpy(w.new_bytes, c->now, c->length);
		if (copy_to_user((struct anyprobe_write __user *)io->writes + i, &w, sizeof w))
			return -EFAULT;
	}
	io->count = change_count;
	return 0;
}

static long driver_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	union {
		struct anyprobe_info info;
		struct anyprobe_region region;
		struct anyprobe_memory memory;
		struct anyprobe_counts counts;
		struct anyprobe_batch batch;
		struct anyprobe_changes changes;
	} io;
	long r;

	if (_IOC_SIZE(command) > sizeof io)
		return -ENOTTY;
	if (_IOC_DIR(command) & _IOC_WRITE && copy_from_user(&io, (void __user *)arg, _IOC_SIZE(command)))
		return -EFAULT;
	if (mutex_lock_killable(&lock))
		return -EINTR;
	switch (command) {
	case ANYPROBE_INFO:
		io.info = (struct anyprobe_info){ ANYPROBE_ABI, num_possible_cpus(), (unsigned long)anyprobe_patches, PATCHES,
						  change_count };
		r = 0;
		break;
	case ANYPROBE_RESERVE: r = reserve(file->private_data, &io.region); break;
	case ANYPROBE_SHARE: r = give_memory(file->private_data, &io.memory, false); break;
	case ANYPROBE_PERCPU: r = give_memory(file->private_data, &io.memory, true); break;
	case ANYPROBE_CHANGES: r = list_changes(&io.changes); break;
	case ANYPROBE_COUNTS: r = read_counts(file->private_data, &io.counts); break;
	case ANYPROBE_APPLY: r = security_locked_down(LOCKDOWN_DEV_MEM) ? -EPERM : apply(file->private_data, &io.batch); break;
	default: r = -ENOTTY;
	}
	mutex_unlock(&lock);
	/* what a refusal says is in the batch */
	if (_IOC_DIR(command) & _IOC_READ && (!r || command == ANYPROBE_APPLY) && copy_to_user((void __user *)arg, &io, _IOC_SIZE(command)))
		return -EFAULT;
	return r;
}

/* Write patches: at a kernel's address, in what the client has reserved. */
static ssize_t driver_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	struct client *client = file->private_data;
	u64 start = *at, page;
	u8 *copy;
	ssize_t r = size;

	if (start >= PATCHES || size > PATCHES - start || !size)
		return -EINVAL;
	copy = kvmalloc(size, GFP_KERNEL);
	if (!copy)
		return -ENOMEM;
	if (copy_from_user(copy, from, size))
		r = -EFAULT;
	mutex_lock(&lock);
	for (page = start >> PAGE_SHIFT; page <= (start + size - 1) >> PAGE_SHIFT; page++)
		if (!test_bit(page, client->pages))
			r = -EPERM;
	if (r > 0) {
		static_call(to_text_poke_copy)(anyprobe_patches + start, copy, size);
		*at += size;
	}
	mutex_unlock(&lock);
	kvfree(copy);
	return r;
}

static int driver_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct client *client = file->private_data;
	u64 index = vma->vm_pgoff >> (32 - PAGE_SHIFT);
	int r = -EINVAL;

	mutex_lock(&lock);
	if (index < client->memories && client->memory[index].address)
		r = remap_vmalloc_range(vma, client->memory[index].address, vma->vm_pgoff & ((1ul << (32 - PAGE_SHIFT)) - 1));
	mutex_unlock(&lock);
	return r;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE, .open = driver_open, .release = driver_release, .unlocked_ioctl = driver_ioctl,
	.write = driver_write, .llseek = default_llseek, .mmap = driver_mmap,
};
static struct miscdevice device = { .minor = MISC_DYNAMIC_MINOR, .name = "anyprobe", .fops = &operations, .mode = 0600 };

/* --- what happens around --- */

/* The text of a module goes: before that, what was written there is taken out. */
static int on_module(struct notifier_block *self, unsigned long event, void *data)
{
	struct module *module = data;
	u32 i, n = 0;

	if (event != MODULE_STATE_GOING || module == THIS_MODULE)
		return NOTIFY_DONE;
	mutex_lock(&lock);
	restore(NULL, module);
	for (i = 0; i < change_count; i++)	/* what has other bytes: nobody runs them any more */
		if (!within_module(changes[i].address, module))
			changes[n++] = changes[i];
	change_count = n;
	mutex_unlock(&lock);
	return NOTIFY_DONE;
}
static struct notifier_block of_modules = { .notifier_call = on_module, .priority = INT_MAX };

/* A processor that wakes up runs code of its own before it is in order: no suspend while anything is written. */
static int on_power(struct notifier_block *self, unsigned long event, void *data)
{
	bool refuse = (event == PM_SUSPEND_PREPARE || event == PM_HIBERNATION_PREPARE) && READ_ONCE(change_count);

	return refuse ? notifier_from_errno(-EBUSY) : NOTIFY_DONE;
}
static struct notifier_block of_power = { .notifier_call = on_power };

static unsigned long find(const char *name)
{
	unsigned long address = static_call(to_kallsyms_lookup_name)(name);

	if (!address)
		pr_err("anyprobe: this kernel has no %s\n", name);
	return address;
}

static void __init add_forbidden(unsigned long start, unsigned long end)
{
	forbidden[forbidden_count].start = start;
	forbidden[forbidden_count++].end = end;
}

#define FOUND(name) ({ unsigned long at_ = find(#name); if (at_) static_call_update(to_##name, (void *)at_); at_; })

static int __init find_functions(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	unsigned long start, size, offset, at;
	int i, r = register_kprobe(&probe);

	if (r)
		return r;
	at = (unsigned long)probe.addr & ~15ul;	/* before its endbr64, if there is one */
	unregister_kprobe(&probe);
	static_call_update(to_kallsyms_lookup_name, (void *)at);
	if (!FOUND(text_poke_copy) || !FOUND(core_kernel_text) || !FOUND(idle_task) || !FOUND(stop_machine_cpuslocked) ||
	    !FOUND(jump_label_text_reserved) || !FOUND(static_call_text_reserved) || !FOUND(ftrace_text_reserved) ||
	    !FOUND(alternatives_text_reserved) || !FOUND(within_kprobe_blacklist) || !FOUND(get_kprobe) || !FOUND(find_bug) ||
	    !FOUND(search_exception_tables) || !FOUND(insn_decode) || !FOUND(kallsyms_lookup_size_offset) ||
	    !FOUND(__module_text_address) || !FOUND(jump_label_lock) || !FOUND(jump_label_unlock))
		return -ENOENT;
	kernel_text_mutex = (void *)find("text_mutex");
	if (!kernel_text_mutex)
		return -ENOENT;
	for (i = 0; i < ARRAY_SIZE(forbidden_functions); i++) {
		start = static_call(to_kallsyms_lookup_name)(forbidden_functions[i]);
		if (start && static_call(to_kallsyms_lookup_size_offset)(start, &size, &offset))
			add_forbidden(start - offset, start - offset + size);
	}
	for (i = 0; i < ARRAY_SIZE(forbidden_ranges); i++) {
		start = static_call(to_kallsyms_lookup_name)(forbidden_ranges[i][0]);
		if (start)
			add_forbidden(start, static_call(to_kallsyms_lookup_name)(forbidden_ranges[i][1]));
	}
	return 0;
}

static int __init anyprobe_init(void)
{
	int r = find_functions();

	if (r)
		return r;
	own_table = THIS_MODULE->extable;
	own_entries = THIS_MODULE->num_exentries;
	r = register_module_notifier(&of_modules);
	if (r)
		return r;
	r = register_pm_notifier(&of_power);
	if (!r)
		r = misc_register(&device);
	if (r) {
		unregister_pm_notifier(&of_power);
		unregister_module_notifier(&of_modules);
	}
	return r;
}

static void __exit anyprobe_exit(void)
{
	misc_deregister(&device);	/* nobody has it open, and no client is left: each holds the module */
	cancel_delayed_work_sync(&later);
	unregister_pm_notifier(&of_power);
	unregister_module_notifier(&of_modules);
	THIS_MODULE->extable = own_table;
	THIS_MODULE->num_exentries = own_entries;
	kvfree(changes);
}

module_init(anyprobe_init);
module_exit(anyprobe_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Memory in reach of the kernel's text, and atomic batches of writes to that text");
