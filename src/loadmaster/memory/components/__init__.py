"""One file per component of the ledger: functions from (spec, job, ...) to Parts.

To add one, write ``<name>.py`` here and name it in the moments of ``timeline.py`` in which it lives. Formulas use only
+ - * // and ``loadmaster.arrays``, so that they serve one job and an array of jobs alike.
"""
