// SPDX-License-Identifier: GPL-2.0
/* A module that is live, and the text of whose start is still there, until it is told to go on. */
#include <linux/delay.h>
#include <linux/module.h>

static bool go;
module_param(go, bool, 0600);

static int on_module(struct notifier_block *self, unsigned long event, void *data)
{
	while (event == MODULE_STATE_LIVE && data == THIS_MODULE && !READ_ONCE(go))
		msleep(20);
	return NOTIFY_DONE;
}
static struct notifier_block of_modules = { .notifier_call = on_module };

static int __init in_between_init(void)
{
	return register_module_notifier(&of_modules);
}

static void __exit in_between_exit(void)
{
	unregister_module_notifier(&of_modules);
}

module_init(in_between_init);
module_exit(in_between_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A module for tests of what happens while it is loaded");
