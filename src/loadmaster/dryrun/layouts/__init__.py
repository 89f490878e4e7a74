"""Several GPUs in a dry run: one rank at a time, in this process, on the one simulated device.

``describe.Parallel`` says how a job is split (no torch); ``apply.wrap`` does to a model on the meta device what the job's
launcher would do on this rank, with torch's own FSDP2, DDP and DTensor; ``apply.roles`` names the ranks that differ, and
``run.simulate_ranks`` takes the worst of them. ``groups`` gives a session the process group: torch's fake one, whose collectives
move nothing; scripts that call ``init_process_group("nccl")`` themselves get it too.

To add a way of splitting: a file beside ``fsdp`` and ``ddp`` with one function from (session, model, parallel, rank) to a
model on the device, a name in ``describe.STRATEGIES``, and a test that computes each term by hand.
"""
