"""Programs of the dry run: a model built from its config by name and stepped as a Job says, on the simulated device.

``simulate.simulate(fields, name, job, card)`` takes the fields of a Hugging Face config.json (``sources.fields_of`` finds them)
and a Job, and gives a DryRun: the model is transformers' own, LoRA is PEFT's own wrapper, optimizers are torch's own. What a
build without CUDA can't run has a stand-in that makes the same tensors, each with the source lines it follows:
``quantized`` (bitsandbytes' layers), ``losses`` (Liger-Kernel, cut cross-entropy), ``states`` (optimizers of other
packages).

What a Job can ask for and a dry run can't do is refused in one sentence by ``honoured.check``; its table says what becomes of
each field. To add a kind of model, give ``building`` its Auto class and ``batches`` its example batch.
"""
