"""Names that are most like a mistyped one."""

from anyprobe.probes.specs.nearest import nearest_names


def test_nearest_names_are_quick_and_sensible():
    import time

    many = [f"function_number_{number}" for number in range(50_000)] + ["pthread_mutex_lock", "pthread_mutex_unlock"]
    start = time.process_time()
    assert nearest_names("pthread_mutx_lock", many)[0] == "pthread_mutex_lock"
    assert time.process_time() - start < 1
    assert nearest_names("", many) == ()
