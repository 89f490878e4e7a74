"""A Llama from a local folder, in bfloat16: gradient checkpointing, accumulation over two batches, AdamW, save_pretrained."""

import sys

import torch
from transformers import AutoModelForCausalLM

folder, out = sys.argv[1], sys.argv[2]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
model.config.use_cache = False
model.gradient_checkpointing_enable()
model.to("cuda")
print("loaded", torch.cuda.memory_allocated())
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(3):
    for _ in range(2):
        ids = torch.randint(0, model.config.vocab_size, (2, 256), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}, allocated {torch.cuda.memory_allocated()}")
model.save_pretrained(out)
