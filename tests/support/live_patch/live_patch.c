// SPDX-License-Identifier: GPL-2.0
/* A live patch, as in the kernel's samples: /proc/cmdline says something else. */
#include <linux/livepatch.h>
#include <linux/module.h>
#include <linux/seq_file.h>

static int patched_cmdline_proc_show(struct seq_file *m, void *v)
{
	seq_puts(m, "live patched\n");
	return 0;
}

static struct klp_func functions[] = { { .old_name = "cmdline_proc_show", .new_func = patched_cmdline_proc_show }, { } };
static struct klp_object objects[] = { { .funcs = functions }, { } };
static struct klp_patch patch = { .mod = THIS_MODULE, .objs = objects };

static int __init live_patch_init(void)
{
	return klp_enable_patch(&patch);
}

static void __exit live_patch_exit(void)
{
}

module_init(live_patch_init);
module_exit(live_patch_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A live patch for tests");
MODULE_INFO(livepatch, "Y");
