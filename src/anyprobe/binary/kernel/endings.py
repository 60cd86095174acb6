"""Functions of the kernel that never return, by name: those of ``tools/objtool/noreturns.h``."""

_NAMES = """
    __fortify_panic __ia32_sys_exit __ia32_sys_exit_group __kunit_abort __module_put_and_kthread_exit __reiserfs_panic
    __stack_chk_fail __tdx_hypercall_failed __ubsan_handle_builtin_unreachable __x64_sys_exit __x64_sys_exit_group
    acpi_processor_ffh_play_dead arch_call_rest_init arch_cpu_idle_dead bch2_trans_in_restart_error
    bch2_trans_restart_error bch2_trans_unlocked_error btrfs_assertfail cpu_bringup_and_idle cpu_startup_entry do_exit
    do_group_exit do_task_dead ex_handler_msr_mce fortify_panic hlt_play_dead hv_ghcb_terminate
    kthread_complete_and_exit kthread_exit kunit_try_catch_throw lbug_with_loc machine_real_restart make_task_dead
    module_put_and_kthread_exit mpt_halt_firmware mwait_play_dead native_play_dead nmi_panic_self_stop panic
    panic_smp_self_stop play_dead rest_init rewind_stack_and_make_dead rewind_stack_do_exit rust_begin_unwind
    rust_helper_BUG sev_es_terminate snp_abort start_kernel start_secondary_nmi stop_this_cpu usercopy_abort vpanic
    x86_64_start_kernel x86_64_start_reservations xen_cpu_bringup_again xen_start_kernel
"""
NEVER_RETURN = tuple(_NAMES.split())
