// SPDX-License-Identifier: GPL-2.0
/*
 * anyprobe: memory in reach of the kernel's text, and batches of writes to that text that happen whole or not at all.
 * All planning is done in user space; what is here checks that a wrong plan cannot hurt the kernel's own patching.
 */
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/extable.h>
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
 * What the kernel does not export. Static calls are direct ones: on a processor with IBT an indirect call of a function
 * whose address is taken nowhere ends in a fault.
 */
#define KERNEL_FUNCTIONS(F) \
	F(void *, text_poke_copy, void *, const void *, size_t) \
	F(int, core_kernel_text, unsigned long) \
	F(struct task_struct *, idle_task, int) \
	F(unsigned int, nr_running, void) \
	F(int, stop_machine_cpuslocked, cpu_stop_fn_t, void *, const struct cpumask *) \
	F(int, ftrace_text_reserved, const void *, const void *) \
	F(int, alternatives_text_reserved, void *, void *) \
	F(bool, within_kprobe_blacklist, unsigned long) \
	F(struct kprobe *, get_kprobe, void *) \
	F(unsigned long, recover_probed_instruction, u8 *, unsigned long) \
	F(const struct exception_table_entry *, search_exception_tables, unsigned long) \
	F(int, insn_decode, struct insn *, const void *, int, enum insn_mode) \
	F(int, kallsyms_lookup_size_offset, unsigned long, unsigned long *, unsigned long *) \
	F(struct module *, __module_text_address, unsigned long) \
	F(void, jump_label_lock, void) \
	F(void, jump_label_unlock, void)
#define KERNEL_DATA(F) \
	F(struct mutex, kprobe_mutex) \
	F(struct mutex, text_mutex) \
	F(struct jump_entry, __start___jump_table) \
	F(struct jump_entry, __stop___jump_table) \
	F(struct static_call_site, __start_static_call_sites) \
	F(struct static_call_site, __stop_static_call_sites)

#define DEFINE_FUNCTION(result, name, ...) \
	static result none_##name(__VA_ARGS__) { return (result)0; } \
	DEFINE_STATIC_CALL(to_##name, none_##name);
#define DEFINE_DATA(type, name) static type *the_##name;
KERNEL_FUNCTIONS(DEFINE_FUNCTION)
KERNEL_DATA(DEFINE_DATA)
DEFINE_FUNCTION(unsigned long, kallsyms_lookup_name, const char *)
#define CALL(name) static_call(to_##name)

/*
 * Code that NMIs run before anything could refuse it, what a stop needs, and what runs while gs does not lead to the
 * processor's memory: processors that come up and go down, and what sets gs. Kprobes' blacklist does not name all of them.
 */
static const char *const forbidden_functions[] = {
	"exc_nmi", "default_do_nmi", "nmi_handle", "nmi_cpu_backtrace", "nmi_cpu_backtrace_handler", "perf_event_nmi_handler",
	"crash_nmi_callback", "arch_trigger_cpumask_backtrace", "text_poke", "text_poke_copy", "text_poke_bp", "text_poke_sync",
	"stop_machine_cpuslocked", "multi_cpu_stop", "cpu_stopper_thread", "fixup_exception", "search_exception_tables",
	"startup_64", "secondary_startup_64", "secondary_startup_64_no_verify", "verify_cpu", "sev_verify_cbit", "start_cpu0",
	"load_percpu_segment", "switch_to_new_gdt", "switch_gdt_and_percpu_base", "native_write_msr", "native_load_gs_index",
	"machine_kexec", "relocate_kernel", "wakeup_long64", "__restore_processor_state", "restore_processor_state",
	"play_dead_common", "hlt_play_dead", "mwait_play_dead", "native_play_dead",
};
static const char *const forbidden_ranges[][2] = {
	{ "__entry_text_start", "__entry_text_end" }, { "__noinstr_text_start", "__noinstr_text_end" },
	{ "__kprobes_text_start", "__kprobes_text_end" }, { "__cpuidle_text_start", "__cpuidle_text_end" },
	{ "__indirect_thunk_start", "__indirect_thunk_end" }, { "_sinittext", "_einittext" },
	{ "__static_call_text_start", "__static_call_text_end" },
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

/* A write in force, with the original bytes as the old ones. */
struct change { struct anyprobe_write w; struct client *client; };

static DEFINE_MUTEX(lock);		/* of all that is below */
static struct change *changes;		/* in ascending order of addresses */
static u32 change_count;
static bool asleep;			/* suspend has begun */
static DECLARE_BITMAP(used_pages, PATCHES >> PAGE_SHIFT);
static DECLARE_BITMAP(used_counters, ANYPROBE_COUNTERS);
static LIST_HEAD(leaving);
static struct exception_table_entry tables[2][MAX_FIXUPS];
static int table_used;

/* One batch while it is checked and written. */
struct batch {
	struct anyprobe_write *writes;	/* in ascending order; `boundaries` only where no task may be */
	u32 count;
	u8 *reasons;			/* of each write */
	u8 **aliases;			/* where each can be written; NULL: left out */
	bool lenient;			/* what has other bytes is left out instead of refused */
	bool scan;			/* no task may be on a boundary, or in a patch */
	struct client *of;		/* only its patches matter; NULL: those of all */
	struct exception_table_entry *table;	/* put in force; NULL: none */
	u32 table_entries;
	atomic_t arrived;
	atomic64_t began;
	bool done;
	u32 failed;
	enum anyprobe_reason reason;
	u64 took_ns;
};

static unsigned long end_of(const struct anyprobe_write *w)
{
	return w->address + w->length;
}

static bool in_patches(struct client *client, unsigned long address)
{
	unsigned long page = (address - (unsigned long)anyprobe_patches) >> PAGE_SHIFT;

	return page < PATCHES >> PAGE_SHIFT && (!client || test_bit(page, client->pages));
}

/* Return the first of some writes, or changes, that ends after an address. */
static u32 first_after(const void *array, size_t stride, u32 count, unsigned long address)
{
	u32 low = 0, high = count;

	while (low < high) {
		u32 middle = (low + high) / 2;

		if (end_of(array + middle * stride) > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static u32 write_after(const struct batch *b, unsigned long address)
{
	return first_after(b->writes, sizeof *b->writes, b->count, address);
}

static u32 change_after(unsigned long address)
{
	return first_after(changes, sizeof *changes, change_count, address);
}

/* --- what may be written --- */

/* Where the check of a batch is. Writes ascend, so that each function is decoded once. */
struct walk {
	unsigned long at, end;		/* the next instruction, the function's end */
	unsigned long probed;		/* up to there a kprobe's jump may reach */
	bool blacklisted;
	u8 bytes[MAX_INSN_SIZE];	/* of the instruction, as they were before changes and kprobes */
	struct insn insn;
};

static struct kprobe *kprobe_at(unsigned long address)
{
	struct kprobe *found;

	preempt_disable();
	found = CALL(get_kprobe)((void *)address);
	preempt_enable();
	return found;		/* kprobe_mutex is held */
}

static bool has_kprobe(const struct anyprobe_write *w)
{
	unsigned long at = w->address;

	while (at < end_of(w) && !kprobe_at(at))
		at++;
	return at < end_of(w);
}

static bool decode(struct walk *walk)
{
	unsigned long size = min_t(unsigned long, MAX_INSN_SIZE, walk->end - walk->at), from = walk->at;
	struct kprobe *probe;
	u32 i, c;

	probe = kprobe_at(walk->at);
	if (probe && !kprobe_ftrace(probe))
		walk->probed = walk->at + LONGEST_OPTIMIZED;
	memset(walk->bytes, 0, MAX_INSN_SIZE);
	memcpy(walk->bytes, (void *)walk->at, size);
	if (walk->at < walk->probed) {
		preempt_disable();
		from = CALL(recover_probed_instruction)(walk->bytes, walk->at);
		preempt_enable();
	}
	for (c = change_after(walk->at); c < change_count && changes[c].w.address < walk->at + size; c++)
		for (i = 0; i < changes[c].w.length; i++)
			if (changes[c].w.address + i - walk->at < size)
				walk->bytes[changes[c].w.address + i - walk->at] = changes[c].w.old_bytes[i];
	return from && CALL(insn_decode)(&walk->insn, walk->bytes, MAX_INSN_SIZE, INSN_MODE_KERN) >= 0;
}

static bool is_live_text(unsigned long address)
{
	struct module *module;
	bool live;

	if (CALL(core_kernel_text)(address))
		return true;
	preempt_disable();
	module = CALL(__module_text_address)(address);
	live = module && module->state == MODULE_STATE_LIVE;
	preempt_enable();
	return live;
}

static bool has_fixup(unsigned long address, struct anyprobe_fixup *fixups, u32 count)
{
	while (count && fixups[count - 1].original != address)
		count--;
	return count;
}

/* Decode up to the end of a write, from the function's start, as kprobes do; compare with what the plan says. */
static enum anyprobe_reason check_instructions(struct walk *walk, struct anyprobe_write *w, struct anyprobe_fixup *fixups, u32 count)
{
	unsigned long size, offset;
	u32 boundaries = 0;
	bool call = false;

	if (w->address >= walk->end) {
		if (!CALL(kallsyms_lookup_size_offset)(w->address, &size, &offset))
			return ANYPROBE_NOT_TEXT;
		walk->at = w->address - offset;
		walk->end = walk->at + size;
		walk->blacklisted = CALL(within_kprobe_blacklist)(w->address);
	}
	if (walk->blacklisted)
		return ANYPROBE_FORBIDDEN;
	if (end_of(w) > walk->end)
		return ANYPROBE_NOT_BOUNDARY;
	for (; walk->at < end_of(w); walk->at += walk->insn.length) {
		u8 *op = walk->insn.opcode.bytes;

		if (!decode(walk))
			return ANYPROBE_NOT_BOUNDARY;
		if (walk->at + walk->insn.length <= w->address)
			continue;
		if (walk->at < w->address)
			return ANYPROBE_NOT_BOUNDARY;
		if (walk->at > w->address)
			boundaries |= 1u << (walk->at - w->address);
		if (call)
			return ANYPROBE_CALL_INSIDE;
		call = op[0] == 0xe8 || (op[0] == 0xff && (X86_MODRM_REG(walk->insn.modrm.value) & 6) == 2);
		if (op[0] == 0x0f && (op[1] == 0x0b || op[1] == 0xb9))	/* ud2 and ud1 */
			return ANYPROBE_BUG;
		if (!memcmp(walk->bytes, "\xf3\x0f\x1e\xfa", 4))
			return ANYPROBE_LANDING_PAD;
		if (CALL(search_exception_tables)(walk->at) && !has_fixup(walk->at, fixups, count))
			return ANYPROBE_FAULTS;
	}
	if (walk->at != end_of(w) || boundaries != w->boundaries)
		return ANYPROBE_NOT_BOUNDARY;
	return walk->probed > w->address ? ANYPROBE_KPROBE : ANYPROBE_DONE;
}

/*
 * What is written are jumps to the client's patches or to other writes of the batch, calls and conditional jumps of the
 * old text that lead there now, nops, and what was there.
 */
static bool leads_home(struct client *client, struct batch *b, struct anyprobe_write *w)
{
	u8 bytes[ANYPROBE_MAX_LENGTH + MAX_INSN_SIZE], *op;
	struct insn insn;
	unsigned long to;
	u32 at, i;

	memcpy(bytes, (void *)w->address, sizeof bytes);
	memcpy(bytes, w->new_bytes, w->length);
	for (at = 0; at < w->length; at += insn.length) {
		op = bytes + at;
		if (CALL(insn_decode)(&insn, op, MAX_INSN_SIZE, INSN_MODE_KERN) < 0)
			return false;
		if (op[0] == 0x90 || (insn.opcode.bytes[0] == 0x0f && insn.opcode.bytes[1] == 0x1f) || (op[0] == 0x66 && op[1] == 0x90))
			continue;
		if (at + insn.length <= w->length && !memcmp(op, w->old_bytes + at, insn.length))
			continue;
		if (!(op[0] == 0xe9 || op[0] == 0xeb || (op[0] == w->old_bytes[at] && (op[0] == 0xe8 || (op[0] & 0xf0) == 0x70)) ||
		      (op[0] == 0x0f && (op[1] & 0xf0) == 0x80 && at + 2 <= w->length && !memcmp(op, w->old_bytes + at, 2))))
			return false;
		to = w->address + at + insn.length + (long)insn.immediate.value;
		i = write_after(b, to);
		if (!in_patches(client, to) && !(i < b->count && b->writes[i].address == to))
			return false;
	}
	return true;
}

static enum anyprobe_reason check_write(struct client *client, struct batch *b, struct anyprobe_write *w, struct walk *walk,
		struct anyprobe_fixup *fixups, u32 count)
{
	void *first = (void *)w->address, *last = (void *)(end_of(w) - 1);
	u32 i = change_after(w->address);

	if (i < change_count && changes[i].w.address < end_of(w)) {
		struct change *c = &changes[i];		/* written again; nothing is inside a jump and what fills up */

		if (c->w.address != w->address || c->w.length != w->length || c->client != client)
			return ANYPROBE_OVERLAP;
		w->boundaries = 0;
		if (has_kprobe(w))		/* it would go on with what it has copied: a jump to this client's patch */
			return ANYPROBE_KPROBE;
		return !memcmp(w->new_bytes, c->w.old_bytes, w->length) || leads_home(client, b, w) ? ANYPROBE_DONE : ANYPROBE_STRAY;
	}
	if (!is_live_text(w->address) || !is_live_text(end_of(w) - 1))
		return ANYPROBE_NOT_TEXT;
	for (i = 0; i < forbidden_count; i++)
		if (w->address < forbidden[i].end && end_of(w) > forbidden[i].start)
			return ANYPROBE_FORBIDDEN;
	if (within_module(w->address, THIS_MODULE))
		return ANYPROBE_FORBIDDEN;
	if (b->reasons[w - b->writes])
		return b->reasons[w - b->writes];
	if (CALL(ftrace_text_reserved)(first, last))
		return ANYPROBE_FTRACE;
	if (CALL(alternatives_text_reserved)(first, last))
		return ANYPROBE_ALTERNATIVE;
	i = check_instructions(walk, w, fixups, count);
	if (i != ANYPROBE_DONE)
		return i;
	return leads_home(client, b, w) ? ANYPROBE_DONE : ANYPROBE_STRAY;
}

static void mark(struct batch *b, unsigned long address, unsigned long end, enum anyprobe_reason reason)
{
	u32 i = write_after(b, address);

	for (; i < b->count && b->writes[i].address < end; i++)
		b->reasons[i] = reason;
}

/* Mark the writes that touch what jump labels and static calls change: these tables are long, and gone through once. */
static void mark_table(struct batch *b, struct jump_entry *j, struct jump_entry *j_end, struct static_call_site *s, struct static_call_site *s_end)
{
	for (; j < j_end; j++) {
		u8 *code = (u8 *)jump_entry_code(j);
		u32 i = write_after(b, (unsigned long)code);

		if (i < b->count && b->writes[i].address < (unsigned long)code + JMP32_INSN_SIZE)	/* bytes may be gone: look late */
			mark(b, (unsigned long)code, (unsigned long)code + (*code == 0xeb || *code == 0x66 ? 2 : 5), ANYPROBE_STATIC_KEY);
	}
	for (; s < s_end; s++) {
		unsigned long code = (unsigned long)&s->addr + s->addr;

		mark(b, code, code + CALL_INSN_SIZE, ANYPROBE_STATIC_CALL);
	}
}

static void mark_tables(struct batch *b)
{
	struct module *last = NULL;
	u32 i;

	mark_table(b, the___start___jump_table, the___stop___jump_table, the___start_static_call_sites, the___stop_static_call_sites);
	for (i = 0; i < b->count; i++) {
		struct module *m;

		preempt_disable();
		m = CALL(__module_text_address)(b->writes[i].address);
		preempt_enable();	/* a module that is live cannot go: its notifier waits for `lock` */
		if (m && m != last && m->state == MODULE_STATE_LIVE)
			mark_table(b, m->jump_entries, m->jump_entries + m->num_jump_entries,
				   m->static_call_sites, m->static_call_sites + m->num_static_call_sites);
		last = m;
	}
}

/* --- the stop --- */

static const int errors[] = {
	[ANYPROBE_BAD_WRITE] = -EINVAL, [ANYPROBE_NOT_TEXT] = -EFAULT, [ANYPROBE_NOT_BOUNDARY] = -EINVAL,
	[ANYPROBE_CALL_INSIDE] = -EINVAL, [ANYPROBE_OLD_BYTES] = -ESTALE, [ANYPROBE_OVERLAP] = -EBUSY,
	[ANYPROBE_BUSY] = -EAGAIN, [ANYPROBE_FORBIDDEN] = -EPERM, [ANYPROBE_STATIC_KEY] = -EPERM,
	[ANYPROBE_STATIC_CALL] = -EPERM, [ANYPROBE_FTRACE] = -EPERM, [ANYPROBE_ALTERNATIVE] = -EPERM,
	[ANYPROBE_KPROBE] = -EPERM, [ANYPROBE_BUG] = -EPERM, [ANYPROBE_FAULTS] = -EPERM, [ANYPROBE_BAD_FIXUP] = -EINVAL,
	[ANYPROBE_STRAY] = -EINVAL, [ANYPROBE_LANDING_PAD] = -EPERM,
};

/*
 * On a boundary of what is written, or in a patch: also of writes that are in force no more, since a task that was
 * preempted in a patch goes on at the end of what was displaced, which may now lie within another write.
 */
static bool is_inside(struct batch *b, unsigned long word)
{
	u32 i;

	b->failed = b->count;		/* of a patch: no write is to blame */
	if (in_patches(NULL, word))
		return !b->of || in_patches(b->of, word);
	if (!b->count || word < b->writes[0].address || word >= end_of(&b->writes[b->count - 1]))
		return false;
	i = b->failed = write_after(b, word);
	return word > b->writes[i].address && b->writes[i].boundaries >> (word - b->writes[i].address) & 1;
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
	unsigned int runnable = 0;
	int cpu;

	for_each_process_thread(group, t) {
		if (has_word_inside(t, b))
			return true;
		runnable += t->on_rq != 0;
	}
	for_each_online_cpu(cpu)
		if (has_word_inside(CALL(idle_task)(cpu), b))
			return true;
	b->failed = b->count;
	/* At the end of its exit a task is on no list. Where it can be preempted then, it is one more that wants to run. */
	return preempt_model_preemptible() && CALL(nr_running)() != runnable;
}

/* Without memcpy(), which may be what is written; in few stores, each of which costs an emulator much. */
static void put(u8 *to, const u8 *from, u32 length)
{
	for (; length >= sizeof(u64); length -= sizeof(u64), to += sizeof(u64), from += sizeof(u64))
		WRITE_ONCE(*(u64 *)to, *(const u64 *)from);
	if (length & 4)
		WRITE_ONCE(*(u32 *)to, *(const u32 *)from);
	if (length & 2)
		WRITE_ONCE(*(u16 *)(to + (length & 4)), *(const u16 *)(from + (length & 4)));
	if (length & 1)
		WRITE_ONCE(to[length - 1], from[length - 1]);
}

static void write_all(struct batch *b)
{
	u32 i;

	for (i = 0; i < b->count; i++)
		if (memcmp((void *)b->writes[i].address, b->writes[i].old_bytes, b->writes[i].length)) {
			if (!b->lenient) {
				b->failed = i;
				b->reason = ANYPROBE_OLD_BYTES;
				return;
			}
			b->aliases[i] = NULL;
		}
	b->reason = b->scan && is_any_inside(b) ? ANYPROBE_BUSY : ANYPROBE_DONE;
	if (b->reason != ANYPROBE_DONE)
		return;
	if (b->table) {			/* before a copy can run */
		WRITE_ONCE(THIS_MODULE->extable, b->table);
		WRITE_ONCE(THIS_MODULE->num_exentries, b->table_entries);
	}
	for (i = 0; i < b->count; i++)
		if (b->aliases[i])
			put(b->aliases[i], b->writes[i].new_bytes, b->writes[i].length);
	sync_core();
}

/* Every processor runs this with interrupts off. The last to come writes: all others are in here then, and nowhere else. */
static int in_stop(void *data)
{
	struct batch *b = data;

	atomic64_cmpxchg(&b->began, 0, ktime_get_ns());
	if (atomic_inc_return(&b->arrived) == num_online_cpus()) {
		write_all(b);
		b->took_ns = ktime_get_ns() - atomic64_read(&b->began);
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
	return CALL(core_kernel_text)(address) ? virt_to_page((void *)address) : vmalloc_to_page((void *)address);
}

/* Map the pages of all writes once more, writable: in the stop a write is then a copy of some bytes. */
static void *map_aliases(struct batch *b)
{
	struct page **pages = kvmalloc_array(2 * b->count, sizeof *pages, GFP_KERNEL);
	unsigned long last = 0;
	u32 i, count = 0;
	void *base;

	if (!pages)
		return NULL;
	for (i = 0; i < b->count; i++) {
		unsigned long first = b->writes[i].address >> PAGE_SHIFT, end = (end_of(&b->writes[i]) - 1) >> PAGE_SHIFT;

		if (first != last)
			pages[count++] = page_of(first << PAGE_SHIFT);
		b->aliases[i] = (u8 *)((count - 1ul) << PAGE_SHIFT) + offset_in_page(b->writes[i].address);
		if (end != first)
			pages[count++] = page_of(end << PAGE_SHIFT);
		last = end;
	}
	base = vmap(pages, count, VM_MAP, PAGE_KERNEL);
	kvfree(pages);
	for (i = 0; i < b->count; i++)
		b->aliases[i] += (unsigned long)base;
	return base;
}

/* Merge what was written into what is in force; what has its original bytes again is in force no more. */
static void merge(struct change *into, struct client *client, struct batch *b)
{
	u32 i = 0, j, n = 0;

	for (j = 0; j <= b->count; j++) {
		unsigned long next = j < b->count ? b->writes[j].address : ULONG_MAX;

		while (i < change_count && changes[i].w.address < next)
			into[n++] = changes[i++];
		if (j == b->count)
			break;
		into[n] = i < change_count && changes[i].w.address == next ? changes[i++] : (struct change){ b->writes[j], client };
		if (b->aliases[j])
			memcpy(into[n].w.new_bytes, b->writes[j].new_bytes, into[n].w.length);
		n += memcmp(into[n].w.new_bytes, into[n].w.old_bytes, into[n].w.length) != 0;
	}
	kvfree(changes);
	changes = into;
	change_count = n;
}

/* Stop the machine and write; called with the locks of text. What has other bytes is counted in `failed` if that is allowed. */
static long commit(struct client *client, struct batch *b)
{
	struct change *merged = kvmalloc_array(change_count + b->count + 1, sizeof *merged, GFP_KERNEL);
	void *base = NULL;
	long r = -ENOMEM;
	u32 i;

	b->aliases = kvcalloc(b->count + 1, sizeof *b->aliases, GFP_KERNEL);
	if (b->aliases && b->count)
		base = map_aliases(b);
	if (merged && b->aliases && (base || !b->count)) {
		atomic_set(&b->arrived, 0);
		atomic64_set(&b->began, 0);
		b->done = false;
		CALL(stop_machine_cpuslocked)(in_stop, b, cpu_online_mask);
		r = errors[b->reason];
	}
	vunmap(base);
	if (!r) {
		for (b->failed = i = 0; i < b->count; i++)
			b->failed += !b->aliases[i];
		if (b->table)
			table_used = !table_used;
		merge(merged, client, b);
		merged = NULL;
	}
	kvfree(merged);
	kvfree(b->aliases);
	return r;
}

/* In the kernel's own order, see kprobes. What a kprobe has copied of text is in its table before that text changes. */
static void lock_text(void)
{
	mutex_lock(the_kprobe_mutex);
	cpus_read_lock();
	CALL(jump_label_lock)();
	mutex_lock(the_text_mutex);
}

static void unlock_text(void)
{
	mutex_unlock(the_text_mutex);
	CALL(jump_label_unlock)();
	cpus_read_unlock();
	mutex_unlock(the_kprobe_mutex);
}

/* --- batches --- */

static unsigned long insn_of(const struct exception_table_entry *e)
{
	return (unsigned long)&e->insn + e->insn;
}

/* Make the table of a batch, by address: what is in force, without what a client leaves, and the new ones, which ascend. */
static long make_table(struct batch *b, struct client *gone, struct anyprobe_fixup *fixups, u32 count)
{
	struct exception_table_entry *now = THIS_MODULE->extable, *now_end = now + THIS_MODULE->num_exentries, *to;
	u32 n = 0;

	b->table = tables[!table_used];
	while (now < now_end || count) {
		bool old = !count || (now < now_end && insn_of(now) < fixups->copy);
		const struct exception_table_entry *from = old ? now : CALL(search_exception_tables)(fixups->original);
		unsigned long insn = old ? insn_of(now) : fixups->copy;

		if (old)
			now++;
		else
			fixups++, count--;
		if (old && gone && in_patches(gone, insn))
			continue;
		if (n == MAX_FIXUPS)
			return -ENOSPC;
		to = &b->table[n++];		/* members are relative to where an entry lies */
		to->insn = insn - (unsigned long)&to->insn;
		to->fixup = (unsigned long)&from->fixup + from->fixup - (unsigned long)&to->fixup;
		to->data = from->data;
	}
	b->table_entries = n;
	return 0;
}

/* Check all writes; what is found of each is in `reasons`, the first refusal in `failed` and `reason`. */
static void check(struct client *client, struct batch *b, struct anyprobe_fixup *fixups, u32 count)
{
	struct walk walk = { };
	u32 i;

	b->reason = ANYPROBE_BAD_FIXUP;
	for (i = 0; i < count; i++) {
		b->failed = i;
		if (!in_patches(client, fixups[i].copy) || !CALL(search_exception_tables)(fixups[i].original) ||
		    (i && fixups[i].copy <= fixups[i - 1].copy))
			return;
	}
	b->reason = ANYPROBE_BAD_WRITE;
	for (i = 0; i < b->count; i++) {
		struct anyprobe_write *w = &b->writes[i];

		b->failed = i;
		b->reasons[i] = ANYPROBE_BAD_WRITE;
		if (!w->length || w->length > ANYPROBE_MAX_LENGTH || end_of(w) < w->address || (w->boundaries & 1) ||
		    (w->length < 32 && w->boundaries >> w->length) || (i && w->address < end_of(w - 1)))
			return;
		b->reasons[i] = b->failed = 0;
	}
	b->reason = ANYPROBE_DONE;
	mark_tables(b);
	for (i = 0; i < b->count; i++) {
		b->reasons[i] = check_write(client, b, &b->writes[i], &walk, fixups, count);
		b->scan |= b->writes[i].boundaries != 0;
		if (b->reason == ANYPROBE_DONE) {
			b->reason = b->reasons[i];
			b->failed = i;
		}
		cond_resched();
	}
}

static long apply(struct client *client, struct anyprobe_batch *io)
{
	struct batch b = { .count = io->write_count };
	struct anyprobe_fixup *fixups;
	long r;

	io->failed = io->reason = io->tried = 0;
	if (b.count > ANYPROBE_MAX_WRITES || io->fixup_count > MAX_FIXUPS || io->tries > ANYPROBE_MAX_TRIES)
		return -E2BIG;
	b.writes = vmemdup_user((void __user *)io->writes, b.count * sizeof *b.writes);
	if (IS_ERR(b.writes))
		return PTR_ERR(b.writes);
	fixups = vmemdup_user((void __user *)io->fixups, io->fixup_count * sizeof *fixups);
	b.reasons = kvzalloc(b.count + 1, GFP_KERNEL);
	lock_text();
	r = IS_ERR(fixups) ? PTR_ERR(fixups) : !b.reasons ? -ENOMEM : asleep ? -EBUSY : 0;
	if (!r) {
		check(client, &b, fixups, io->fixup_count);
		r = errors[b.reason];
	}
	if (!r && io->fixup_count)
		r = make_table(&b, NULL, fixups, io->fixup_count);
	while (!r) {
		io->tried++;
		r = commit(client, &b);
		if (r != -EAGAIN || io->tried >= io->tries || fatal_signal_pending(current))
			break;
		usleep_range(500, 1500);
		r = 0;
	}
	unlock_text();
	io->failed = b.failed;
	io->reason = b.reason;
	io->stopped_ns = b.took_ns;
	if (io->reasons && b.reasons && copy_to_user((void __user *)io->reasons, b.reasons, b.count))
		r = r ?: -EFAULT;
	kvfree(b.reasons);
	kvfree(b.writes);
	if (!IS_ERR(fixups))
		kvfree(fixups);
	return r;
}

/*
 * Take out what a client has written; without one, what all have written in a module. As many as one stop may take at a
 * time: each is whole by itself. What has other bytes now, or a kprobe that has copied them, stays, and with it the
 * client's patches.
 */
static long restore(struct client *client, struct module *module)
{
	struct batch b = { .lenient = true, .writes = kvmalloc_array(ANYPROBE_MAX_WRITES, sizeof *b.writes, GFP_KERNEL) };
	unsigned long next = 0;
	u32 i, left = 0;
	long r = b.writes ? 0 : -ENOMEM;

	lock_text();
	do {
		b.count = 0;
		for (i = change_after(next); i < change_count && b.count < ANYPROBE_MAX_WRITES && !r; i++) {
			struct anyprobe_write *w = &changes[i].w, *to = &b.writes[b.count];

			next = end_of(w);
			if (client ? changes[i].client != client : !within_module(w->address, module))
				continue;
			if (has_kprobe(w)) {
				left++;
				continue;
			}
			*to = (struct anyprobe_write){ .address = w->address, .length = w->length };
			memcpy(to->old_bytes, w->new_bytes, w->length);
			memcpy(to->new_bytes, w->old_bytes, w->length);
			b.count++;
		}
		if (b.count) {
			r = commit(client, &b);
			left += b.failed;
		}
	} while (!r && b.count == ANYPROBE_MAX_WRITES);
	unlock_text();
	kvfree(b.writes);
	return r ?: left ? -ESTALE : 0;
}

/* Give up the fix-ups in a client's patches, when no task is in these any more. */
static long leave_patches(struct client *client)
{
	struct batch b = { .of = client, .scan = true };
	long r;

	if (bitmap_empty(client->pages, PATCHES >> PAGE_SHIFT))
		return 0;
	lock_text();
	r = make_table(&b, client, NULL, 0) ?: commit(client, &b);
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
		schedule_delayed_work(&later, HZ / 20);
	mutex_unlock(&lock);
}

static int driver_open(struct inode *inode, struct file *file)
{
	if (!capable(CAP_SYS_ADMIN) || security_locked_down(LOCKDOWN_DEV_MEM))
		return -EPERM;
	file->private_data = kvzalloc(sizeof(struct client), GFP_KERNEL);
	return file->private_data ? 0 : -ENOMEM;
}

static int driver_release(struct inode *inode, struct file *file)
{
	struct client *client = file->private_data;

	__module_get(THIS_MODULE);	/* the open file has the module until this function returns, the client as long as it is there */
	mutex_lock(&lock);
	list_add(&client->list, &leaving);
	mutex_unlock(&lock);
	release_leaving(NULL);
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
	io->size = m->size = percpu ? round_up(io->size, 8) : PAGE_ALIGN(io->size);
	if (percpu)
		m->percpu = give_counters(m->size);
	else
		m->address = vmalloc_user(m->size);
	io->address = percpu ? (unsigned long)m->percpu : (unsigned long)m->address;
	if (!io->address)
		return -ENOMEM;
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

	for (i = 0; i < change_count && i < io->room; i++)
		if (copy_to_user((struct anyprobe_write __user *)io->writes + i, &changes[i].w, sizeof changes[i].w))
			return -EFAULT;
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

/* Write patches: at an offset in all patches, in what the client has reserved. */
static ssize_t driver_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	unsigned long address = (unsigned long)anyprobe_patches + *at, page = address & PAGE_MASK;
	ssize_t r = size;
	u8 *copy;

	if (*at < 0 || *at >= PATCHES || size > PATCHES - *at || !size)
		return -EINVAL;
	copy = vmemdup_user(from, size);
	if (IS_ERR(copy))
		return PTR_ERR(copy);
	mutex_lock(&lock);
	for (; page < address + size; page += PAGE_SIZE)
		if (!in_patches(file->private_data, page))
			r = -EPERM;
	if (r > 0) {
		CALL(text_poke_copy)((void *)address, copy, size);
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
		if (!within_module(changes[i].w.address, module))
			changes[n++] = changes[i];
	change_count = n;
	mutex_unlock(&lock);
	return NOTIFY_DONE;
}
static struct notifier_block of_modules = { .notifier_call = on_module, .priority = INT_MAX };

/* A processor that wakes up runs code of its own before it is in order: no suspend while anything is written. */
static int on_power(struct notifier_block *self, unsigned long event, void *data)
{
	bool begins = event == PM_SUSPEND_PREPARE || event == PM_HIBERNATION_PREPARE || event == PM_RESTORE_PREPARE;

	mutex_lock(&lock);
	asleep = begins && !change_count;
	mutex_unlock(&lock);
	return begins && !asleep ? notifier_from_errno(-EBUSY) : NOTIFY_DONE;
}
static struct notifier_block of_power = { .notifier_call = on_power };

static unsigned long find(const char *name, int *missing)
{
	unsigned long address = CALL(kallsyms_lookup_name)(name);

	if (!address) {
		pr_err("anyprobe: this kernel has no %s\n", name);
		++*missing;
	}
	return address;
}

static void __init forbid(unsigned long start, unsigned long end)
{
	forbidden[forbidden_count].start = start;
	forbidden[forbidden_count++].end = end;
}

#define FIND_FUNCTION(result, name, ...) \
	at = find(#name, &missing); \
	if (at) \
		static_call_update(to_##name, (void *)at);
#define FIND_DATA(type, name) the_##name = (type *)find(#name, &missing);

static int __init find_all(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	unsigned long start, size, offset, at;
	int i, missing = 0, r = register_kprobe(&probe);

	if (r)
		return r;
	at = (unsigned long)probe.addr & ~15ul;	/* before its endbr64, if there is one */
	unregister_kprobe(&probe);
	static_call_update(to_kallsyms_lookup_name, (void *)at);
	KERNEL_FUNCTIONS(FIND_FUNCTION)
	KERNEL_DATA(FIND_DATA)
	if (missing)
		return -ENOENT;
	for (i = 0; i < ARRAY_SIZE(forbidden_functions); i++) {
		start = CALL(kallsyms_lookup_name)(forbidden_functions[i]);
		if (start && CALL(kallsyms_lookup_size_offset)(start, &size, &offset))
			forbid(start - offset, start - offset + size);
	}
	for (i = 0; i < ARRAY_SIZE(forbidden_ranges); i++) {
		start = CALL(kallsyms_lookup_name)(forbidden_ranges[i][0]);
		if (start)
			forbid(start, CALL(kallsyms_lookup_name)(forbidden_ranges[i][1]));
	}
	return 0;
}

static int __init anyprobe_init(void)
{
	int r = find_all();

	if (r)
		return r;
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
	kvfree(changes);
}

module_init(anyprobe_init);
module_exit(anyprobe_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Memory in reach of the kernel's text, and atomic batches of writes to that text");
