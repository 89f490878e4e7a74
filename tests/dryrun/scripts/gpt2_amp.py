"""GPT-2 in float16: autocast, GradScaler, clipping, fused AdamW, torch.compile; generates at the end."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2
config = GPT2Config(n_layer=2, n_head=4, n_embd=256, vocab_size=5000, n_positions=128)
config.use_cache = False
model = GPT2LMHeadModel(config).cuda()
model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
scaler = torch.amp.GradScaler("cuda")
model.train()
for _ in range(steps):
    ids = torch.randint(0, 5000, (4, 128)).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(input_ids=ids, labels=ids).loss
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        raise SystemExit("the gradients are not finite")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print("scale", scaler.get_scale(), "allocated", torch.cuda.memory_allocated())
model.eval()
print(model.generate(ids[:, :8], max_new_tokens=4, do_sample=False, pad_token_id=0).shape)
