// SPDX-License-Identifier: GPL-2.0
/*
 * anyprobe: memory in reach of the kernel's text, and batches of writes to that text that happen whole or not at all.
 * All planning is done in user space; what is here checks that a wrong plan cannot hurt the kernel's own patching.
 */
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/extable.h>
#include <linux/fdtable.h>
#include <linux/ftrace.h>
#include <linux/interval_tree_generic.h>
#include <linux/jump_label.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/mem_encrypt.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/objtool.h>
#include <linux/percpu.h>
#include <linux/random.h>
#include <linux/range.h>
#include <linux/sched/signal.h>
#include <linux/security.h>
#include <linux/slab.h>
#include <linux/static_call.h>
#include <linux/stop_machine.h>
#include <linux/string.h>
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
	F(const char *, kallsyms_lookup, unsigned long, unsigned long *, unsigned long *, char **, char *) \
	F(struct module *, __module_text_address, unsigned long) \
	F(void, jump_label_lock, void) \
	F(void, jump_label_unlock, void)
#define KERNEL_DATA(F) \
	F(struct mutex, kprobe_mutex) \
	F(struct mutex, text_mutex) \
	F(int, modules_disabled) \
	F(struct jump_entry, __start___jump_table) \
	F(struct jump_entry, __stop___jump_table) \
	F(struct static_call_site, __start_static_call_sites) \
	F(struct static_call_site, __stop_static_call_sites)
#ifdef CONFIG_OPTPROBES
#define OPTIMIZER_FUNCTIONS(F) \
	F(int, arch_prepare_optimized_kprobe, struct optimized_kprobe *, struct kprobe *) \
	F(int, ftrace_is_dead, void)
#else
#define OPTIMIZER_FUNCTIONS(F)
#endif

#define DEFINE_FUNCTION(result, name, ...) \
	static result none_##name(__VA_ARGS__) { return (result)0; } \
	DEFINE_STATIC_CALL(to_##name, none_##name);
#define DEFINE_DATA(type, name) static type *the_##name;
KERNEL_FUNCTIONS(DEFINE_FUNCTION)
OPTIMIZER_FUNCTIONS(DEFINE_FUNCTION)
KERNEL_DATA(DEFINE_DATA)
DEFINE_FUNCTION(unsigned long, kallsyms_lookup_name, const char *)
static int *the_kexec_load_disabled;	/* where the kernel can be replaced by another one */
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
	"machine_kexec", "relocate_kernel", "identity_mapped", "virtual_mapped", "swap_pages", "wakeup_long64", "__restore_processor_state", "restore_processor_state",
	"play_dead_common", "hlt_play_dead", "mwait_play_dead", "native_play_dead",
	"arch_prepare_optimized_kprobe", "__fentry__", "ftrace_stub", "return_to_handler",
};
static const char *const forbidden_ranges[][2] = {
	{ "__entry_text_start", "__entry_text_end" }, { "__noinstr_text_start", "__noinstr_text_end" },
	{ "__kprobes_text_start", "__kprobes_text_end" }, { "__cpuidle_text_start", "__cpuidle_text_end" },
	{ "__indirect_thunk_start", "__indirect_thunk_end" }, { "_sinittext", "_einittext" },
	{ "__static_call_text_start", "__static_call_text_end" },
	{ "ftrace_caller", "return_to_handler" },	/* the kernel copies these as trampolines, and writes in them */
};
static struct range forbidden[ARRAY_SIZE(forbidden_functions) + ARRAY_SIZE(forbidden_ranges)];
static int forbidden_count;
/* What functions are that the kernel rewrites, or that entry code goes through, wherever they lie: also in modules. */
static const struct { const char *prefix; enum anyprobe_reason reason; } forbidden_names[] = {
	{ "__SCT__", ANYPROBE_STATIC_CALL }, { "bpf_dispatcher_", ANYPROBE_ALTERNATIVE },
	{ "__x86_indirect_", ANYPROBE_FORBIDDEN }, { "__x86_return_", ANYPROBE_FORBIDDEN }, { "srso_", ANYPROBE_FORBIDDEN },
	{ "retbleed_", ANYPROBE_FORBIDDEN }, { "zen_untrain_ret", ANYPROBE_FORBIDDEN }, { "its_return_thunk", ANYPROBE_FORBIDDEN },
	{ "call_depth_return_thunk", ANYPROBE_FORBIDDEN }, { "entry_ibpb", ANYPROBE_FORBIDDEN },
	{ "write_ibpb", ANYPROBE_FORBIDDEN }, { "clear_bhb_loop", ANYPROBE_FORBIDDEN },
};

/* What a client has; freed when no task is in its patches any more. */
struct client {
	struct list_head list;	/* among those that have ended and are not freed yet */
	struct pid *process;	/* which has opened it, and alone may use it: it ends with that, whoever has inherited the file */
	bool ended, closed;	/* by its process; by all who have the file */
	struct memory { void *shared; void __percpu *percpu, *own; u64 size; } memory[256];
	u32 memories, pages, changes;
	bool waited;		/* since its writes were taken out, for tasks that no stop may find */
	struct completion *tried;	/* told when it has been seen whether all can be freed */
};

/* A write in force, with the original bytes as the old ones. All of them are changed with kprobe_mutex held. */
struct change {
	union {
		struct rb_node node;
		struct change *next;	/* of those that are in no tree yet */
	};
	unsigned long last_below;
	struct anyprobe_write w;
	struct client *client;
};
#define FIRST_BYTE(c) ((c)->w.address)
#define LAST_BYTE(c) ((c)->w.address + (c)->w.length - 1)
INTERVAL_TREE_DEFINE(struct change, node, unsigned long, last_below, FIRST_BYTE, LAST_BYTE, static, tree)
#define FOR_EACH_CHANGE(c, first, last) \
	for (c = tree_iter_first(&changes, first, last); c; c = tree_iter_next(c, first, last))

static DEFINE_MUTEX(lock);		/* of all that is below */
static struct rb_root_cached changes = RB_ROOT_CACHED;
static u32 change_count;
static bool asleep;			/* suspend has begun */
static struct client *page_owners[PATCHES >> PAGE_SHIFT], *counter_owners[ANYPROBE_COUNTERS];
static LIST_HEAD(leaving);
static struct exception_table_entry tables[2][MAX_FIXUPS];
static int table_used;

/* The batch that is checked and written. */
static struct {
	u32 count, fixup_count;
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
	struct edit {			/* in ascending order; `boundaries` only where no task may be */
		struct anyprobe_write w;
		struct change *change;	/* what is in force there, or will be */
		u8 *alias;		/* where it can be written */
		enum anyprobe_reason reason;	/* it is refused, or left out */
	} edits[ANYPROBE_MAX_WRITES];
	struct anyprobe_fixup fixups[MAX_FIXUPS];
} batch;

static void begin_batch(void)
{
	memset(&batch, 0, offsetof(typeof(batch), edits));
}

static struct edit *add_edit(void)
{
	struct edit *edit = &batch.edits[batch.count++];

	memset(edit, 0, sizeof *edit);
	return edit;
}

static __always_inline unsigned long end_of(const struct anyprobe_write *w)
{
	return w->address + w->length;
}

/* Return whose patches an address is in; NULL: in none. */
static __always_inline struct client *owner_of(unsigned long address)
{
	unsigned long page = (address - (unsigned long)anyprobe_patches) >> PAGE_SHIFT;

	return page < ARRAY_SIZE(page_owners) ? page_owners[page] : NULL;
}

/* Return the first of the batch's writes that ends after an address. */
static __always_inline u32 edit_after(unsigned long address)
{
	u32 low = 0, high = batch.count;

	while (low < high) {
		u32 middle = (low + high) / 2;

		if (end_of(&batch.edits[middle].w) > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* --- what may be written --- */

/* Where the check of a batch is. Writes ascend, so that each function is decoded once. */
struct walk {
	unsigned long at, end;		/* the next instruction, the function's end */
	unsigned long probed;		/* up to there a kprobe's jump may reach */
	enum anyprobe_reason refused;	/* the whole function */
	u8 bytes[MAX_INSN_SIZE];	/* of the instruction, as they were before changes and kprobes */
	struct insn insn;
};

static bool has_kprobe(const struct anyprobe_write *w)
{
	unsigned long at;

	for (at = w->address; at < end_of(w); at++)
		if (CALL(get_kprobe)((void *)at))	/* kprobe_mutex is held */
			return true;
	return false;
}

static bool decode(struct walk *walk)
{
	unsigned long size = min_t(unsigned long, MAX_INSN_SIZE, walk->end - walk->at), from = walk->at, i;
	struct kprobe *probe = CALL(get_kprobe)((void *)walk->at);
	struct change *c;

	if (probe && !kprobe_ftrace(probe))
		walk->probed = walk->at + LONGEST_OPTIMIZED;
	memset(walk->bytes, 0, MAX_INSN_SIZE);
	memcpy(walk->bytes, (void *)walk->at, size);
	if (walk->at < walk->probed)
		from = CALL(recover_probed_instruction)(walk->bytes, walk->at);
	FOR_EACH_CHANGE(c, walk->at, walk->at + size - 1)
		for (i = max(walk->at, FIRST_BYTE(c)); i <= LAST_BYTE(c) && i < walk->at + size; i++)
			walk->bytes[i - walk->at] = c->w.old_bytes[i - FIRST_BYTE(c)];
	return from && CALL(insn_decode)(&walk->insn, walk->bytes, MAX_INSN_SIZE, INSN_MODE_KERN) >= 0;
}

static bool has_fixup(unsigned long address)
{
	u32 i = 0;

	while (i < batch.fixup_count && batch.fixups[i].original != address)
		i++;
	return i < batch.fixup_count;
}

/* Why is no byte of a function written? */
static enum anyprobe_reason refuses_function(unsigned long address, const char *name)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(forbidden_names); i++)
		if (str_has_prefix(name, forbidden_names[i].prefix))
			return forbidden_names[i].reason;
	return CALL(within_kprobe_blacklist)(address) ? ANYPROBE_FORBIDDEN : ANYPROBE_DONE;
}

/* Decode up to the end of a write, from the function's start, as kprobes do; compare with what the plan says. */
static enum anyprobe_reason check_instructions(struct walk *walk, struct anyprobe_write *w)
{
	static char name_buffer[KSYM_NAME_LEN];
	unsigned long size, offset;
	u32 boundaries = 0;
	bool call = false;

	if (w->address >= walk->end) {
		char *module;
		const char *name = CALL(kallsyms_lookup)(w->address, &size, &offset, &module, name_buffer);

		if (!name)
			return ANYPROBE_NOT_TEXT;
		walk->at = w->address - offset;
		walk->end = walk->at + size;
		walk->refused = refuses_function(w->address, name);
	}
	if (walk->refused)
		return walk->refused;
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
		if (CALL(search_exception_tables)(walk->at) && !has_fixup(walk->at))
			return ANYPROBE_FAULTS;
	}
	if (walk->at != end_of(w) || boundaries != w->boundaries)
		return ANYPROBE_NOT_BOUNDARY;
	return walk->probed > w->address ? ANYPROBE_KPROBE : ANYPROBE_DONE;
}

/* One that means nothing but to go on. */
static bool is_nop(const u8 *op, const struct insn *insn)
{
	const u8 *code = op + insn_offset_opcode((struct insn *)insn);

	for (; op < code; op++)
		if (*op != 0x66)
			return false;
	return code[0] == 0x90 || (code[0] == 0x0f && code[1] == 0x1f);
}

/*
 * What is written are jumps to the client's patches, calls and conditional jumps of the original text that lead there now,
 * nops, and what was there. So each write can be taken out without the others. Instructions begin where others did before, up
 * to a jump, behind which are nops that nobody comes to.
 */
static bool leads_home(struct client *client, const struct anyprobe_write *w, const u8 *original, u32 boundaries)
{
	u8 bytes[ANYPROBE_MAX_LENGTH + MAX_INSN_SIZE] = { }, *op = bytes;
	bool jumped = false;
	struct insn insn;

	memcpy(bytes, w->new_bytes, w->length);
	for (; op < bytes + w->length; op += insn.length, original += insn.length) {
		if (CALL(insn_decode)(&insn, op, MAX_INSN_SIZE, INSN_MODE_KERN) < 0 || op + insn.length > bytes + w->length)
			return false;
		if (!jumped && op > bytes && !(boundaries >> (op - bytes) & 1))
			return false;
		if (is_nop(op, &insn))
			continue;
		if (jumped)
			return false;
		if (!memcmp(op, original, insn.length))
			continue;
		jumped = op[0] == 0xe9 || op[0] == 0xeb;
		if (!jumped && ((op[0] != 0xe8 && (op[0] & 0xf0) != 0x70 && (op[0] != 0x0f || (op[1] & 0xf0) != 0x80)) ||
				memcmp(op, original, insn_offset_immediate(&insn))))
			return false;
		if (owner_of(w->address + (op - bytes) + insn.length + (long)insn.immediate.value) != client)
			return false;
	}
	return true;
}

/* Has an instruction that was there a fix-up, and its copy none? */
static bool lacks_fixup(const struct anyprobe_write *w)
{
	unsigned long at;

	for (at = w->address; at < end_of(w); at++)
		if (CALL(search_exception_tables)(at) && !has_fixup(at))
			return true;
	return false;
}

static enum anyprobe_reason check_write(struct client *client, struct edit *edit, struct walk *walk)
{
	struct anyprobe_write *w = &edit->w;
	struct change *c = edit->change = tree_iter_first(&changes, w->address, end_of(w) - 1);
	void *first = (void *)w->address, *last = (void *)(end_of(w) - 1);

	if (c) {
		if (c->w.address != w->address || c->w.length != w->length || c->client != client)
			return ANYPROBE_OVERLAP;
		/* nothing is inside a jump and what fills up */
		w->boundaries = (c->w.new_bytes[0] & 0xfd) == 0xe9 ? 0 : c->w.boundaries;
		edit->reason = has_kprobe(w) ? ANYPROBE_KPROBE :	/* it would go on with the jump that it has copied */
			memcmp(w->new_bytes, c->w.old_bytes, w->length) && lacks_fixup(w) ? ANYPROBE_FAULTS : ANYPROBE_DONE;
	} else if (!edit->reason) {
		edit->reason = CALL(ftrace_text_reserved)(first, last) ? ANYPROBE_FTRACE :
			CALL(alternatives_text_reserved)(first, last) ? ANYPROBE_ALTERNATIVE : check_instructions(walk, w);
	}
	if (!edit->reason && !leads_home(client, w, c ? c->w.old_bytes : w->old_bytes, c ? c->w.boundaries : w->boundaries))
		return ANYPROBE_STRAY;
	return edit->reason;
}

/* Is a range near enough to the batch to look closer? */
static __always_inline bool is_near(unsigned long start, unsigned long end)
{
	return batch.count && end > batch.edits[0].w.address && start < end_of(&batch.edits[batch.count - 1].w);
}

static void mark(unsigned long start, unsigned long end, enum anyprobe_reason reason)
{
	u32 i;

	for (i = is_near(start, end) ? edit_after(start) : batch.count; i < batch.count && batch.edits[i].w.address < end; i++)
		batch.edits[i].reason = reason;
}

/* Mark the writes that touch what jump labels and static calls change: these tables are long, and gone through once. */
static void mark_table(struct jump_entry *j, struct jump_entry *j_end, struct static_call_site *s, struct static_call_site *s_end)
{
	for (; j < j_end; j++) {
		unsigned long code = jump_entry_code(j);

		if (!jump_entry_is_init(j) && is_near(code, code + JMP32_INSN_SIZE))
			mark(code, code + (*(u8 *)code == 0xeb || *(u8 *)code == 0x66 ? 2 : 5), ANYPROBE_STATIC_KEY);
	}
	for (; s < s_end; s++) {
		unsigned long code = (unsigned long)&s->addr + s->addr;

		mark(code, code + CALL_INSN_SIZE, ANYPROBE_STATIC_CALL);
	}
}

/*
 * Is an address in text of the kernel, or of a module that is live? What the kernel changes in that is marked then. The text
 * of a module's start goes soon after it has become live, and nobody is told.
 */
static bool is_text(unsigned long address, struct module **marked)
{
	struct module *m;

	if (CALL(core_kernel_text)(address))
		return true;
	preempt_disable();
	m = CALL(__module_text_address)(address);
	/* one that is live cannot go: its notifier waits for `lock` */
	if (m && (m->state != MODULE_STATE_LIVE || !within_module_core(address, m)))
		m = NULL;
	preempt_enable();
	if (m && m != *marked)
		mark_table(m->jump_entries, m->jump_entries + m->num_jump_entries,
			   m->static_call_sites, m->static_call_sites + m->num_static_call_sites);
	if (m && is_livepatch_module(m))	/* relocated whenever a module that it patches comes or goes */
		mark(address, address + 1, ANYPROBE_ALTERNATIVE);
	*marked = m;
	return m;
}

/* Check all of the batch: what is found of each write is noted there; return the first refusal. */
static enum anyprobe_reason check(struct client *client)
{
	enum anyprobe_reason found = ANYPROBE_DONE;
	struct module *marked = NULL;
	struct walk walk = { };
	u32 i;

	for (i = 0; i < batch.count; i++) {
		struct anyprobe_write *w = &batch.edits[batch.failed = i].w;

		if (!w->length || w->length > ANYPROBE_MAX_LENGTH || end_of(w) < w->address || (w->boundaries & 1) ||
		    (u64)w->boundaries >> w->length || (i && w->address < end_of(&batch.edits[i - 1].w)))
			return batch.edits[i].reason = ANYPROBE_BAD_WRITE;
	}
	for (i = 0; i < batch.fixup_count; i++) {
		struct anyprobe_fixup *f = &batch.fixups[batch.failed = i];

		/* other code than text has fix-ups that mean other things, or may be gone */
		if (owner_of(f->copy) != client || (i && f->copy <= f[-1].copy) || !is_text(f->original, &marked) ||
		    !CALL(search_exception_tables)(f->original))
			return ANYPROBE_BAD_FIXUP;
	}
	mark_table(the___start___jump_table, the___stop___jump_table, the___start_static_call_sites, the___stop_static_call_sites);
	for (i = 0; i < forbidden_count; i++)
		mark(forbidden[i].start, forbidden[i].end, ANYPROBE_FORBIDDEN);
	for (i = 0; i < batch.count; i++) {
		struct edit *edit = &batch.edits[i];

		if (within_module(edit->w.address, THIS_MODULE))
			edit->reason = ANYPROBE_FORBIDDEN;
		else if (!is_text(edit->w.address, &marked) || !is_text(end_of(&edit->w) - 1, &marked))
			edit->reason = ANYPROBE_NOT_TEXT;
		edit->reason = check_write(client, edit, &walk);
		batch.scan |= edit->w.boundaries != 0;
		if (found == ANYPROBE_DONE) {
			found = edit->reason;
			batch.failed = i;
		}
		cond_resched();
	}
	return found;
}

/* --- the stop --- */

static const int errors[] = {
	[ANYPROBE_BAD_WRITE] = -EINVAL, [ANYPROBE_NOT_TEXT] = -EFAULT, [ANYPROBE_NOT_BOUNDARY] = -EINVAL,
	[ANYPROBE_CALL_INSIDE] = -EINVAL, [ANYPROBE_OLD_BYTES] = -ESTALE, [ANYPROBE_OVERLAP] = -EBUSY,
	[ANYPROBE_BUSY] = -EAGAIN, [ANYPROBE_FORBIDDEN ... ANYPROBE_FAULTS] = -EPERM, [ANYPROBE_BAD_FIXUP] = -EINVAL,
	[ANYPROBE_STRAY] = -EINVAL, [ANYPROBE_LANDING_PAD] = -EPERM,
};

/*
 * On a boundary of what is written, or in a patch: also of writes that are in force no more, since a task that was
 * preempted in a patch goes on at the end of what was displaced, which may now lie within another write.
 */
static noinstr bool is_inside(unsigned long word)
{
	struct client *owner = owner_of(word);
	u32 i = batch.count;		/* of a patch: no write is to blame */
	struct anyprobe_write *w;

	if (!owner && is_near(word, word)) {
		i = edit_after(word);
		w = &batch.edits[i].w;
		if (word <= w->address || !(w->boundaries >> (word - w->address) & 1))
			return false;
	} else if (!owner || (batch.of && batch.of != owner)) {
		return false;
	}
	batch.failed = i;
	return true;
}

/*
 * Nothing of the stop is instrumented: handlers of kprobes would run while text is half written, or all processors wait. What
 * is called before the first write may be.
 */

/* Does the unwinder find a task inside? What it cannot unwind to the end counts as inside. */
static noinstr bool unwinds_inside(struct task_struct *t)
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
		if (!address || is_inside(address))
			return true;
	}
	return unwind_error(&state);
}

/*
 * Is a saved pc or a return address on a task's kernel stack one of those? Every word counts at first. Frames that were
 * left long ago may have such a word too, in a task that sleeps for days: then the unwinder decides. Who runs is in the stop,
 * and nowhere else; what was found inside in an earlier stop is on these stacks.
 */
static noinstr bool has_word_inside(struct task_struct *t)
{
	unsigned long *p = t->stack, *end = p + THREAD_SIZE / sizeof *p, sp = t->thread.sp, word;

	if (!p || t->on_cpu || !refcount_read(&t->stack_refcount))
		return false;
	if (sp >= (unsigned long)p && sp < (unsigned long)end)
		p = (unsigned long *)(sp & ~7ul);
	for (; p < end; p++) {
		word = READ_ONCE_NOCHECK(*p);
		if (word >= __START_KERNEL_map && is_inside(word))	/* all text is there */
			return unwinds_inside(t);
	}
	return false;
}

/* Is it one that nr_running() counts? Not in a group whose CPU time is used up: that is on no run queue then. */
static noinstr bool wants_to_run(const struct task_struct *t)
{
#ifdef CONFIG_FAIR_GROUP_SCHED
	const struct sched_entity *group;

	for (group = t->se.on_rq ? t->se.parent : NULL; group; group = group->parent)
		if (!group->on_rq)
			return false;
#endif
	return t->on_rq;
}

static noinstr bool is_any_inside(void)
{
	struct task_struct *group, *t;
	unsigned int runnable = 0;
	int cpu;

	for_each_process_thread(group, t) {
		if (has_word_inside(t))
			return true;
		runnable += wants_to_run(t);
	}
	for_each_online_cpu(cpu)
		if (has_word_inside(CALL(idle_task)(cpu)))
			return true;
	batch.failed = batch.count;
	/* At the end of its exit a task is on no list. Where it can be preempted then, it is one more that wants to run. */
	return preempt_model_preemptible() && CALL(nr_running)() != runnable;
}

/* Without memcpy(), which may be what is written; in few stores, each of which costs an emulator much. */
static noinstr void put(u8 *to, const u8 *from, u32 length)
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

/*
 * Where the processor that writes, and no other one, sees the pages of a batch writable: page tables of its own for addresses
 * of programs, with the kernel's for the rest. They are loaded as CR3 for the writes alone, without a PCID, so that nothing of
 * them stays in a TLB that others use. Their pages lie in no mapping of the kernel at any time.
 */
#define WINDOW_PAGES (2 * ANYPROBE_MAX_WRITES)
#define TABLE_ENTRIES 512
#define TABLE_INDEX(address, shift) ((address) >> (shift) & (TABLE_ENTRIES - 1))
static struct {
	unsigned long base;
	u64 *root;			/* of a pair of pages: bit 12 of CR3 says of page-table isolation which half is in use */
	u64 *inner[3];
	pte_t *entries;			/* of WINDOW_PAGES */
} window;

static noinstr unsigned long open_window(void)
{
	unsigned long before = __native_read_cr3();
	u64 *kernel = __va(before & CR3_ADDR_MASK);
	int i;

	for (i = TABLE_ENTRIES / 2; i < TABLE_ENTRIES; i++)
		WRITE_ONCE(window.root[i], READ_ONCE(kernel[i]));
	native_write_cr3(__sme_pa(window.root));
	return before;
}

static noinstr enum anyprobe_reason write_all(void)
{
	struct edit *edit, *end = batch.edits + batch.count;
	unsigned long before;

	for (edit = batch.edits; edit < end; edit++)
		if (memcmp((void *)edit->w.address, edit->w.old_bytes, edit->w.length)) {
			batch.failed = edit - batch.edits;
			edit->reason = ANYPROBE_OLD_BYTES;
			if (!batch.lenient)
				return ANYPROBE_OLD_BYTES;
		}
	if (batch.scan && is_any_inside())
		return ANYPROBE_BUSY;
	if (batch.table) {		/* before a copy can run */
		WRITE_ONCE(THIS_MODULE->extable, batch.table);
		WRITE_ONCE(THIS_MODULE->num_exentries, batch.table_entries);
	}
	before = open_window();
	for (edit = batch.edits; edit < end; edit++)
		if (edit->reason == ANYPROBE_DONE)
			put(edit->alias, edit->w.new_bytes, edit->w.length);
	native_write_cr3(before);
	sync_core();
	return ANYPROBE_DONE;
}

/* Every processor runs this with interrupts off. The last to come writes: all others are in here then, and nowhere else. */
static noinstr int in_stop(void *unused)
{
	atomic64_cmpxchg(&batch.began, 0, ktime_get_ns());
	if (atomic_inc_return(&batch.arrived) == num_online_cpus()) {
		batch.reason = write_all();
		batch.took_ns = ktime_get_ns() - atomic64_read(&batch.began);
		smp_store_release(&batch.done, true);
	} else {
		while (!smp_load_acquire(&batch.done))
			cpu_relax();
	}
	sync_core();
	return 0;
}

static struct page *page_of(unsigned long address)
{
	return CALL(core_kernel_text)(address) ? virt_to_page((void *)address) : vmalloc_to_page((void *)address);
}

/* Say where the window shows the pages of all writes: in the stop a write is then a copy of some bytes. */
static u32 fill_window(void)
{
	pgprot_t writable = __pgprot(pgprot_val(PAGE_KERNEL) & ~_PAGE_GLOBAL);
	struct edit *edit, *end = batch.edits + batch.count;
	unsigned long at, mapped = 0;
	u32 count = 0;

	for (edit = batch.edits; edit < end; edit++) {
		for (at = edit->w.address & PAGE_MASK; at < end_of(&edit->w); at += PAGE_SIZE)
			if (at > mapped)
				native_set_pte(&window.entries[count++], mk_pte(page_of(mapped = at), writable));
		edit->alias = (u8 *)window.base + ((unsigned long)count << PAGE_SHIFT) - (at - edit->w.address);
	}
	return count;
}

/* Stop the machine and write the batch; called with the locks of text. */
static long commit(void)
{
	u32 pages = fill_window();

	atomic_set(&batch.arrived, 0);
	atomic64_set(&batch.began, 0);
	batch.done = false;
	CALL(stop_machine_cpuslocked)(in_stop, NULL, cpu_online_mask);
	memset(window.entries, 0, pages * sizeof *window.entries);
	if (batch.reason == ANYPROBE_DONE && batch.table)
		table_used = !table_used;
	return errors[batch.reason];
}

static void free_window(void)
{
	int i;

	free_pages((unsigned long)window.entries, get_order(WINDOW_PAGES * sizeof *window.entries));
	for (i = 0; i < ARRAY_SIZE(window.inner); i++)
		free_page((unsigned long)window.inner[i]);
	free_pages((unsigned long)window.root, 1);
}

static long __init make_window(void)
{
	int shift = pgtable_l5_enabled() ? 48 : 39, level = 0, i;	/* of the addresses that an entry of the table covers */
	u64 *table;

	if (cpu_feature_enabled(X86_FEATURE_XENPV))	/* whose page tables are the hypervisor's */
		return -EOPNOTSUPP;
	window.root = table = (u64 *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, 1);
	window.entries = (pte_t *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, get_order(WINDOW_PAGES * sizeof *window.entries));
	/* so that each table but the last ones has one entry, or as many beside each other */
	window.base = get_random_u64() % TASK_SIZE_MAX & -((u64)WINDOW_PAGES << PAGE_SHIFT);
	for (; table && window.entries && shift > PMD_SHIFT; shift -= 9) {
		u64 *next = window.inner[level++] = (u64 *)get_zeroed_page(GFP_KERNEL);

		if (next)
			table[TABLE_INDEX(window.base, shift)] = __sme_pa(next) | _KERNPG_TABLE_NOENC;
		table = next;
	}
	if (!table || !window.entries)
		return -ENOMEM;
	for (i = 0; i < WINDOW_PAGES / TABLE_ENTRIES; i++)
		table[TABLE_INDEX(window.base, PMD_SHIFT) + i] = __sme_pa(window.entries + i * TABLE_ENTRIES) | _KERNPG_TABLE_NOENC;
	return 0;
}

/* Note what is in force now; what has its original bytes, or went with its module, is no more. */
static void settle(bool written, bool gone)
{
	struct edit *edit, *end = batch.edits + batch.count;

	for (edit = batch.edits; edit < end; edit++) {
		struct change *c = edit->change;

		if (c && written && edit->reason == ANYPROBE_DONE)
			memcpy(c->w.new_bytes, edit->w.new_bytes, c->w.length);
		if (!c || (!gone && memcmp(c->w.new_bytes, c->w.old_bytes, c->w.length)))
			continue;
		tree_remove(c, &changes);
		c->client->changes--;
		change_count--;
		kfree(c);
	}
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

/*
 * A kprobe is optimized, to a jump over several instructions, where no branch leads between these. The kernel looks for such
 * branches when a kprobe is set, in the text as it is, and does not see those in patches. So it finds each kprobe unfit that is
 * set in a function in which something is written, and has it stay a breakpoint as long as it is set. One that was set before
 * was looked at without anything of ours; nothing is written where its jump may reach. The switch of kprobes' optimization is
 * the administrator's: at any time it may be as it wants.
 */
#ifdef CONFIG_OPTPROBES
/* With kprobe_mutex, as all changes. */
static int prepare_optimized_kprobe(struct optimized_kprobe *op, struct kprobe *unused)
{
	unsigned long at = (unsigned long)op->kp.addr, size, offset;

	if (CALL(kallsyms_lookup_size_offset)(at, &size, &offset) &&
	    tree_iter_first(&changes, at - offset, at - offset + size - 1))
		return -EBUSY;
	return CALL(arch_prepare_optimized_kprobe)(op, unused);
}

static void notrace instead(unsigned long ip, unsigned long parent, struct ftrace_ops *ops, struct ftrace_regs *regs)
{
	if (!within_module(parent, THIS_MODULE))
		ftrace_get_regs(regs)->ip = (unsigned long)prepare_optimized_kprobe;
}

/* Permanent: what the kernel's switch of ftrace cannot take away. */
static struct ftrace_ops guard = {
	.func = instead, .flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT,
};

static bool is_guarded(void)
{
	return !CALL(ftrace_is_dead)();
}

static int __init put_guard(void)
{
	unsigned long at = CALL(kallsyms_lookup_name)("arch_prepare_optimized_kprobe");
	int r = ftrace_set_filter_ip(&guard, at, 0, 0) ?: register_ftrace_function(&guard);

	if (r)
		pr_err("anyprobe: this kernel has no ftrace of arch_prepare_optimized_kprobe (%d)\n", r);
	return r ? -ENOENT : 0;
}

static void remove_guard(void)
{
	unregister_ftrace_function(&guard);
	mutex_lock(the_kprobe_mutex);	/* who has been sent here has left when it has given that back */
	mutex_unlock(the_kprobe_mutex);
}
#else
static bool is_guarded(void) { return true; }
static int put_guard(void) { return 0; }
static void remove_guard(void) { }
#endif

/* --- who may --- */

/*
 * May the caller bring code into the kernel? As it may not where it could not load a module of its own, or the kernel takes no
 * new code any more. Asked at every call: the one who has opened the device may have dropped what it needed for that.
 */
static bool may_use(void)
{
	return capable(CAP_SYS_ADMIN) && capable(CAP_SYS_MODULE);
}

static bool may_write(void)
{
	return may_use() && !security_locked_down(LOCKDOWN_DEV_MEM) && !is_module_sig_enforced() &&
		!READ_ONCE(*the_modules_disabled) && !(the_kexec_load_disabled && READ_ONCE(*the_kexec_load_disabled));
}

/* Is it the process that has opened the device, as far as it still may? Not one that has inherited or been sent the file. */
static bool is_of(struct client *client)
{
	return task_tgid(current) == client->process && may_use();
}

/* --- batches --- */

/* Make the table of a batch, by address: what is in force, without what a client leaves, and the new ones, which ascend. */
static long make_table(struct client *gone)
{
	struct exception_table_entry *now = THIS_MODULE->extable, *end = now + THIS_MODULE->num_exentries;
	u32 i = 0, n = 0;

	if (!gone && !batch.fixup_count)
		return 0;
	batch.table = tables[!table_used];
	while (now < end || i < batch.fixup_count) {
		unsigned long insn = (unsigned long)&now->insn + (now < end ? now->insn : 0);
		bool old = i == batch.fixup_count || (now < end && insn < batch.fixups[i].copy);
		const struct exception_table_entry *from = old ? now++ : CALL(search_exception_tables)(batch.fixups[i].original);
		struct exception_table_entry *to = &batch.table[n];

		if (!from)
			return -EINVAL;
		if (!old && now < end && insn == batch.fixups[i].copy)
			now++;				/* the copy had another one */
		if (!old)
			insn = batch.fixups[i++].copy;
		else if (gone && owner_of(insn) == gone)
			continue;
		if (n++ == MAX_FIXUPS)
			return -ENOSPC;
		to->insn = insn - (unsigned long)&to->insn;	/* members are relative to where an entry lies */
		to->fixup = (unsigned long)&from->fixup + from->fixup - (unsigned long)&to->fixup;
		to->data = from->data;
	}
	batch.table_entries = n;
	/* The table before this one is written next. Who was preempted before using an entry of it has faulted in a patch. */
	if (preempt_model_preemptible()) {
		batch.scan = true;
		batch.of = NULL;
	}
	return 0;
}

/* Have a change for each write, in force or not; new ones are taken from a list that is long enough. */
static void add_changes(struct client *client, struct change **spare)
{
	struct edit *edit;

	for (edit = batch.edits; edit < batch.edits + batch.count; edit++) {
		struct change *c = edit->change;

		if (c)
			continue;
		c = edit->change = *spare;
		*spare = c->next;
		c->w = edit->w;
		memcpy(c->w.new_bytes, c->w.old_bytes, sizeof c->w.new_bytes);
		c->client = client;
		tree_insert(c, &changes);
		client->changes++;
		change_count++;
	}
}

/* Does a batch only put back what was there? */
static bool is_undoing(void)
{
	struct edit *edit;

	for (edit = batch.edits; edit < batch.edits + batch.count; edit++)
		if (!edit->change || memcmp(edit->w.new_bytes, edit->change->w.old_bytes, edit->w.length))
			return false;
	return true;
}

static long check_and_write(struct client *client, struct anyprobe_batch *io, const struct anyprobe_write *writes,
			    const struct anyprobe_fixup *fixups, struct change **spare)
{
	u32 i;
	long r;

	begin_batch();
	batch.fixup_count = io->fixup_count;
	memcpy(batch.fixups, fixups, io->fixup_count * sizeof *fixups);
	for (i = 0; i < io->write_count; i++)
		add_edit()->w = writes[i];
	lock_text();
	r = asleep ? -EBUSY : !is_guarded() ? -EIO : errors[batch.reason = check(client)];
	if (!r && !is_undoing() && !may_write())
		r = -EPERM;
	if (!r) {
		add_changes(client, spare);
		r = make_table(NULL);
		while (!r) {
			r = commit();
			if (++io->tried >= io->tries || r != -EAGAIN || fatal_signal_pending(current))
				break;
			usleep_range(500, 1500);
			r = 0;
		}
		settle(!r, false);
	}
	unlock_text();
	io->failed = batch.failed;
	io->reason = batch.reason;
	io->stopped_ns = batch.took_ns;
	return r;
}

static void free_spare(struct change *spare)
{
	while (spare) {
		struct change *next = spare->next;

		kfree(spare);
		spare = next;
	}
}

static long add_spare(struct change **spare, u32 count)
{
	while (count--) {
		struct change *c = kmalloc(sizeof *c, GFP_KERNEL_ACCOUNT);

		if (!c)
			return -ENOMEM;
		c->next = *spare;
		*spare = c;
	}
	return 0;
}

/* Take the lock for what a client asks for; not if it has ended. */
static long lock_for(struct client *client)
{
	long r = mutex_lock_killable(&lock);

	if (!r && client->ended) {
		mutex_unlock(&lock);
		r = -ESHUTDOWN;
	}
	return r;
}

/* The memory of programs is read and written without `lock`: a page may be a long time coming. */
static long apply(struct client *client, struct anyprobe_batch *io)
{
	static const u8 no_reasons[ANYPROBE_MAX_WRITES];	/* clear_user() would need a fix-up in the driver's own text */
	struct anyprobe_write *writes;
	struct anyprobe_fixup *fixups;
	struct change *spare = NULL;
	u8 *reasons;
	u32 i;
	long r;

	io->failed = io->reason = io->tried = 0;
	if (io->write_count > ANYPROBE_MAX_WRITES || io->fixup_count > MAX_FIXUPS || io->tries > ANYPROBE_MAX_TRIES)
		return -E2BIG;
	writes = vmemdup_user((void __user *)io->writes, io->write_count * sizeof *writes);
	if (IS_ERR(writes))
		return PTR_ERR(writes);
	fixups = vmemdup_user((void __user *)io->fixups, io->fixup_count * sizeof *fixups);
	r = IS_ERR(fixups) ? PTR_ERR(fixups) :
		io->reasons && copy_to_user((void __user *)io->reasons, no_reasons, io->write_count) ? -EFAULT :
		add_spare(&spare, io->write_count) ?: lock_for(client);
	if (!r) {
		r = check_and_write(client, io, writes, fixups, &spare);
		reasons = (u8 *)writes;		/* which are in the batch by now */
		for (i = 0; i < io->write_count; i++)
			reasons[i] = batch.edits[i].reason;
		mutex_unlock(&lock);
		/* if that is gone meanwhile, the text is written all the same */
		if (io->reasons && copy_to_user((void __user *)io->reasons, reasons, io->write_count))
			io->reasons = 0;
	}
	free_spare(spare);
	if (!IS_ERR(fixups))
		kvfree(fixups);
	kvfree(writes);
	return r;
}

/*
 * Take out what a client has written; without one, what all have written in a module that goes. As many as one stop may
 * take at a time: each is whole by itself. What has other bytes now, or a kprobe that has copied them, stays, and with
 * it the client's patches; not in a module: its text has been left.
 */
static long restore(struct client *client, struct module *module)
{
	unsigned long next = 0;
	struct change *c;
	long r = 0;

	if (client && !client->changes)
		return 0;
	lock_text();
	do {
		begin_batch();
		batch.lenient = true;
		FOR_EACH_CHANGE(c, next, ULONG_MAX) {
			struct edit *edit;

			if (batch.count == ANYPROBE_MAX_WRITES)
				break;
			if (client ? c->client != client : !within_module(c->w.address, module))
				continue;
			if (client && (has_kprobe(&c->w) || memcmp((void *)c->w.address, c->w.new_bytes, c->w.length)))
				continue;
			edit = add_edit();
			edit->change = c;
			edit->w = (struct anyprobe_write){ .address = c->w.address, .length = c->w.length };
			memcpy(edit->w.old_bytes, c->w.new_bytes, c->w.length);
			memcpy(edit->w.new_bytes, c->w.old_bytes, c->w.length);
		}
		next = c ? c->w.address : ULONG_MAX;
		r = batch.count ? commit() : 0;
		settle(!r, module);
	} while (c && (!r || module));
	unlock_text();
	return r ?: client && client->changes ? -ESTALE : 0;
}

/* Give up the fix-ups in a client's patches, when no task is in these any more. */
static long leave_patches(struct client *client)
{
	long r = 0;

	if (client->pages) {
		lock_text();
		begin_batch();
		batch.of = client;
		batch.scan = true;
		r = make_table(client) ?: commit();
		unlock_text();
	}
	return r;
}

/* --- clients --- */

/* Give a client some neighbours of what has no owner; return the first. */
static long claim(struct client **owners, u32 count, u64 wanted, struct client *client)
{
	u32 at, run = 0;

	for (at = 0; at < count && run < wanted; at++)
		run = owners[at] ? 0 : run + 1;
	if (run < wanted)
		return -ENOSPC;
	for (; run; run--)
		owners[at - run] = client;
	return at - wanted;
}

static void disclaim(struct client **owners, u32 count, struct client *client)
{
	while (count--)
		if (owners[count] == client)
			owners[count] = NULL;
}

/* Have nothing but breakpoints in a page of patches: when its client has left it, and until one writes its own. */
static void fill_page(u32 index)
{
	u8 *page = anyprobe_patches + ((unsigned long)index << PAGE_SHIFT);
	static u8 breakpoints[PAGE_SIZE];

	memset(breakpoints, INT3_INSN_OPCODE, PAGE_SIZE);
	if (memchr_inv(page, INT3_INSN_OPCODE, PAGE_SIZE))
		CALL(text_poke_copy)(page, breakpoints, PAGE_SIZE);
}

/* Take patches and counters from a client that has left them. */
static void disown(struct client *client)
{
	u32 i;

	for (i = 0; client->pages && i < ARRAY_SIZE(page_owners); i++)
		if (page_owners[i] == client)
			fill_page(i);
	disclaim(page_owners, ARRAY_SIZE(page_owners), client);
	disclaim(counter_owners, ARRAY_SIZE(counter_owners), client);
}

/* Free a client that has nothing of the kernel any more; without `lock`, since there may be much memory. */
static void release(struct client *client)
{
	while (client->memories--) {
		vfree(client->memory[client->memories].shared);
		free_percpu(client->memory[client->memories].own);
	}
	put_pid(client->process);
	kvfree(client);
	module_put(THIS_MODULE);
}

static void tell_closer(struct client *client)
{
	if (client->tried)
		complete(client->tried);
	client->tried = NULL;
}

static void release_leaving(struct work_struct *work);
static DECLARE_DELAYED_WORK(later, release_leaving);
static void release_leaving(struct work_struct *work)
{
	struct client *client, *next;
	bool wait = false, wait_longer = false;
	LIST_HEAD(left);

	mutex_lock(&lock);
	list_for_each_entry_safe(client, next, &leaving, list) {
		if (restore(client, NULL))
			wait_longer = true;
		else if (client->closed) {
			list_move(&client->list, &left);
			wait |= !client->waited;
			client->waited = true;
			continue;
		}
		tell_closer(client);
	}
	mutex_unlock(&lock);
	/* Tasks leave patches by themselves, once no text leads there. Those that no stop may find, see is_any_inside(): */
	if (wait && preempt_model_preemptible())
		synchronize_rcu_tasks();
	mutex_lock(&lock);
	list_for_each_entry_safe(client, next, &left, list) {
		long r = leave_patches(client);

		tell_closer(client);
		wait_longer |= !!r;
		if (r)
			list_move(&client->list, &leaving);
		else
			disown(client);
	}
	if (wait_longer)
		queue_delayed_work(system_unbound_wq, &later, HZ / 20);
	mutex_unlock(&lock);
	list_for_each_entry_safe(client, next, &left, list)
		release(client);
}

static int driver_open(struct inode *inode, struct file *file)
{
	struct client *client;

	if (!may_write())
		return -EPERM;
	file->private_data = client = kvzalloc(sizeof *client, GFP_KERNEL_ACCOUNT);
	if (!client)
		return -ENOMEM;
	client->process = get_pid(task_tgid(current));
	INIT_LIST_HEAD(&client->list);
	return 0;
}

/* What a client has written is taken out; tried again if it cannot be now. With `lock`. */
static void end(struct client *client)
{
	if (!client->ended) {
		__module_get(THIS_MODULE);	/* the open file has the module until it is closed, the client as long as it is there */
		list_add(&client->list, &leaving);
	}
	client->ended = true;
	if (restore(client, NULL))
		mod_delayed_work(system_unbound_wq, &later, HZ / 20);
}

static int is_file(const void *file, struct file *other, unsigned int fd)
{
	return file == other;
}

/*
 * The process that has opened the device closes its last descriptor, or dies, by SIGKILL too: then it is over, though a child
 * may have the file still. A process that dies has no table of files any more when they are closed.
 */
static int driver_flush(struct file *file, fl_owner_t id)
{
	struct client *client = file->private_data;

	if (task_tgid(current) == client->process && !(current->files && iterate_fd(current->files, 0, is_file, file))) {
		mutex_lock(&lock);
		end(client);
		mutex_unlock(&lock);
	}
	return 0;
}

static int driver_release(struct inode *inode, struct file *file)
{
	DECLARE_COMPLETION_ONSTACK(tried);
	struct client *client = file->private_data;
	bool by_worker = preempt_model_preemptible();	/* a task that gets no time would have its closer wait as well */

	mutex_lock(&lock);
	end(client);
	client->closed = true;
	client->tried = by_worker ? &tried : NULL;
	mutex_unlock(&lock);
	if (!by_worker) {
		release_leaving(NULL);
		return 0;
	}
	mod_delayed_work(system_unbound_wq, &later, 0);
	if (!wait_for_completion_timeout(&tried, 5 * HZ)) {
		mutex_lock(&lock);
		if (!completion_done(&tried))
			client->tried = NULL;
		mutex_unlock(&lock);
	}
	return 0;
}

static long reserve(struct client *client, struct anyprobe_region *io)
{
	u64 pages = DIV_ROUND_UP(io->size, PAGE_SIZE);
	long first = io->size && io->size <= PATCHES ? claim(page_owners, ARRAY_SIZE(page_owners), pages, client) : -EINVAL, i;

	if (first < 0)
		return first;
	client->pages += pages;
	for (i = first; i < first + pages; i++)
		fill_page(i);
	io->size = pages << PAGE_SHIFT;
	io->address = (unsigned long)anyprobe_patches + (first << PAGE_SHIFT);
	return 0;
}

/* Give a client counters in reach of 32 bits, if enough of these are left. With `lock`. */
static void __percpu *near_counters(struct client *client, u64 size)
{
	long first = claim(counter_owners, ARRAY_SIZE(counter_owners), size / sizeof(u64), client);
	int cpu;

	if (first < 0)
		return NULL;
	for_each_possible_cpu(cpu)
		memset(per_cpu_ptr((u64 __percpu *)&anyprobe_counters + first, cpu), 0, size);
	return (u64 __percpu *)&anyprobe_counters + first;
}

/* Memory is allocated, and counted as the caller's, without `lock`: for much of it that takes long. */
static long give_memory(struct client *client, struct anyprobe_memory *io, bool percpu)
{
	struct memory new = { };
	long r;

	if (!io->size || io->size > (percpu ? ANYPROBE_MAX_PERCPU : ANYPROBE_MAX_SHARED))
		return -EINVAL;
	io->size = new.size = percpu ? round_up(io->size, 8) : PAGE_ALIGN(io->size);
	if (percpu)
		new.own = __alloc_percpu_gfp(new.size, 64, GFP_KERNEL_ACCOUNT);
	else
		new.shared = __vmalloc(new.size, GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	r = new.own || new.shared ? lock_for(client) : -ENOMEM;
	if (!r && client->memories == ARRAY_SIZE(client->memory)) {
		r = -ENOSPC;
		mutex_unlock(&lock);
	} else if (!r) {
		void __percpu *near = percpu ? near_counters(client, new.size) : NULL;
		struct memory *m = &client->memory[client->memories];

		*m = new;
		m->percpu = near ?: new.own;
		m->own = near ? NULL : new.own;
		new = (struct memory){ .own = near ? new.own : NULL };
		io->address = percpu ? (unsigned long)m->percpu : (unsigned long)m->shared;
		io->offset = (u64)client->memories << 32;
		smp_store_release(&client->memories, client->memories + 1);	/* for mmap() */
		mutex_unlock(&lock);
	}
	vfree(new.shared);
	free_percpu(new.own);
	return r;
}

/* Each counter is read in one piece: it may be counting. Without `lock`: what a client has been given stays as it is. */
static long read_counts(struct client *client, struct anyprobe_counts *io)
{
	struct memory *m = client->memory, *end = m + smp_load_acquire(&client->memories);
	u64 __user *to = (u64 __user *)io->values;
	u64 at;
	int cpu;

	while (m < end && !(m->percpu && io->address - (unsigned long)m->percpu < m->size))
		m++;
	if (m == end || (io->address | io->size) % sizeof *to || io->size > m->size - (io->address - (unsigned long)m->percpu))
		return -EINVAL;
	for_each_possible_cpu(cpu)
		for (at = 0; at < io->size; at += sizeof *to)
			if (put_user(READ_ONCE(*(u64 *)per_cpu_ptr((void __percpu *)io->address + at, cpu)), to++))
				return -EFAULT;
	return 0;
}

/* Memory for them is allocated without `lock`, as all is: it may be long in coming, and there may be more of them by then. */
static long list_changes(struct anyprobe_changes *io)
{
	struct anyprobe_write *writes = NULL;
	struct change *c;
	u32 room, told = 0;
	long r;

	for (;;) {
		room = min(io->room, READ_ONCE(change_count));
		writes = kvmalloc_array(room, sizeof *writes, GFP_KERNEL_ACCOUNT);
		r = writes ? mutex_lock_killable(&lock) : -ENOMEM;
		if (r || min(io->room, change_count) <= room)
			break;
		mutex_unlock(&lock);
		kvfree(writes);
	}
	if (!r) {
		io->count = change_count;
		FOR_EACH_CHANGE(c, 0, ULONG_MAX)
			if (told < room)
				writes[told++] = c->w;
		mutex_unlock(&lock);
		io->room = told;
		r = copy_to_user((void __user *)io->writes, writes, told * sizeof *writes) ? -EFAULT : 0;
	}
	kvfree(writes);
	return r;
}

static long with_lock(struct client *client, unsigned int command, void *io)
{
	long r = lock_for(client);

	if (r)
		return r;
	switch (command) {
	case ANYPROBE_INFO:
		*(struct anyprobe_info *)io = (struct anyprobe_info){
			ANYPROBE_ABI, num_possible_cpus(), (unsigned long)anyprobe_patches, PATCHES, change_count
		};
		break;
	case ANYPROBE_RESERVE: r = reserve(client, io); break;
	default: r = -ENOTTY;
	}
	mutex_unlock(&lock);
	return r;
}

static long driver_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	struct client *client = file->private_data;
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
	if (!is_of(client))
		return -EPERM;
	if (_IOC_DIR(command) & _IOC_WRITE && copy_from_user(&io, (void __user *)arg, _IOC_SIZE(command)))
		return -EFAULT;
	switch (command) {
	case ANYPROBE_CHANGES: r = list_changes(&io.changes); break;
	case ANYPROBE_COUNTS: r = read_counts(client, &io.counts); break;
	case ANYPROBE_SHARE: r = give_memory(client, &io.memory, false); break;
	case ANYPROBE_PERCPU: r = give_memory(client, &io.memory, true); break;
	case ANYPROBE_APPLY:			/* what cannot be told is not done */
		r = copy_to_user((void __user *)arg, &io, sizeof io.batch) ? -EFAULT : apply(client, &io.batch);
		break;
	default: r = with_lock(client, command, &io);
	}
	/* what a refusal says is in the batch */
	if (_IOC_DIR(command) & _IOC_READ && (!r || command == ANYPROBE_APPLY) &&
	    copy_to_user((void __user *)arg, &io, _IOC_SIZE(command)) && command != ANYPROBE_APPLY)
		return -EFAULT;
	return r;
}

/* Write patches: at an offset in all patches, in what the client has reserved. */
static ssize_t driver_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	unsigned long address = (unsigned long)anyprobe_patches + *at, page = address & PAGE_MASK;
	u8 *copy = *at < 0 || *at >= PATCHES || size > PATCHES - *at || !size ? ERR_PTR(-EINVAL) : vmemdup_user(from, size);
	ssize_t r = IS_ERR(copy) ? PTR_ERR(copy) : !is_of(file->private_data) || !may_write() ? -EPERM :
		lock_for(file->private_data);

	if (r)
		goto out;
	for (; page < address + size; page += PAGE_SIZE)
		if (owner_of(page) != file->private_data)
			r = -EPERM;
	if (!r) {
		CALL(text_poke_copy)((void *)address, copy, size);
		*at += size;
		r = size;
	}
	mutex_unlock(&lock);
out:
	if (!IS_ERR(copy))
		kvfree(copy);
	return r;
}

/*
 * Without `lock`: the program's memory is locked, for which others wait who hold processors, for which a batch waits. What
 * a client has been given stays as it is. A child does not inherit the mapping, which would keep the file open.
 */
static int driver_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct client *client = file->private_data;
	u64 index = vma->vm_pgoff >> (32 - PAGE_SHIFT), at = vma->vm_pgoff << PAGE_SHIFT & U32_MAX;
	u64 size = vma->vm_end - vma->vm_start, i;
	struct memory *m = client->memory + index;
	int r = 0;

	if (!is_of(client))
		return -EPERM;
	if (index >= smp_load_acquire(&client->memories) || !m->shared || at > m->size || size > m->size - at)
		return -EINVAL;
	/* the flags are const since Linux 6.3; nobody else has the mapping yet */
	*(vm_flags_t *)&vma->vm_flags |= VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP;
	for (i = 0; i < size && !r; i += PAGE_SIZE) {
		r = vm_insert_page(vma, vma->vm_start + i, vmalloc_to_page(m->shared + at + i));
		cond_resched();
	}
	return r;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE, .open = driver_open, .flush = driver_flush, .release = driver_release, .unlocked_ioctl = driver_ioctl,
	.write = driver_write, .llseek = default_llseek, .mmap = driver_mmap,
};
static struct miscdevice device = { .minor = MISC_DYNAMIC_MINOR, .name = "anyprobe", .fops = &operations, .mode = 0600 };

/* --- what happens around --- */

/* The text of a module goes: before that, what was written there is taken out. */
static int on_module(struct notifier_block *self, unsigned long event, void *data)
{
	if (event == MODULE_STATE_GOING && data != THIS_MODULE) {
		mutex_lock(&lock);
		restore(NULL, data);
		mutex_unlock(&lock);
	}
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
	OPTIMIZER_FUNCTIONS(FIND_FUNCTION)
	KERNEL_DATA(FIND_DATA)
	the_kexec_load_disabled = (int *)CALL(kallsyms_lookup_name)("kexec_load_disabled");
	if (missing)
		return -ENOENT;
	for (i = 0; i < ARRAY_SIZE(forbidden_functions); i++) {
		start = CALL(kallsyms_lookup_name)(forbidden_functions[i]);
		if (start && CALL(kallsyms_lookup_size_offset)(start, &size, &offset))
			forbidden[forbidden_count++] = (struct range){ start - offset, start - offset + size };
	}
	for (i = 0; i < ARRAY_SIZE(forbidden_ranges); i++) {
		start = CALL(kallsyms_lookup_name)(forbidden_ranges[i][0]);
		if (start)
			forbidden[forbidden_count++] = (struct range){ start, CALL(kallsyms_lookup_name)(forbidden_ranges[i][1]) };
	}
	return 0;
}

static void take_down(void)
{
	unregister_pm_notifier(&of_power);	/* nothing happens where one is not registered */
	unregister_module_notifier(&of_modules);
	free_window();
}

static int __init anyprobe_init(void)
{
	int r = find_all() ?: make_window() ?: register_module_notifier(&of_modules) ?: register_pm_notifier(&of_power);

	r = r ?: put_guard();
	if (!r) {
		r = misc_register(&device);
		if (r)
			remove_guard();
	}
	if (r)
		take_down();
	return r;
}

static void __exit anyprobe_exit(void)
{
	misc_deregister(&device);	/* nobody has it open, and no client is left: each holds the module */
	cancel_delayed_work_sync(&later);
	remove_guard();
	take_down();
}

module_init(anyprobe_init);
module_exit(anyprobe_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Memory in reach of the kernel's text, and atomic batches of writes to that text");
