"""Debug information (DWARF 2 to 5), read unit by unit as far as it is asked for.

In: debug sections. Out: functions' entries, parameters' locations, ranges, inlined instances.
Must not read all units of a module where one is wanted: they take seconds.
"""
