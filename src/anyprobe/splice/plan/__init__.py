"""Planning: wanted sites of functions become splices and refusals.

In: analysed functions, wanted sites, claimed bytes. Out: `Splice` values and `Refusal`s.
Must not touch the target.
"""
