"""BERT with Accelerate: bfloat16, accumulation, gathered metrics, save_state."""

import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
config = BertConfig(
    num_hidden_layers=2,
    hidden_size=128,
    num_attention_heads=4,
    intermediate_size=512,
    vocab_size=2000,
    num_labels=3,
)
model = BertForSequenceClassification(config)
data = TensorDataset(
    torch.randint(0, 2000, (32, 64)), torch.ones(32, 64, dtype=torch.long), torch.randint(0, 3, (32,))
)
train, test = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=12)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = get_linear_schedule_with_warmup(optimizer, 1, 100)
model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
model.train()
for ids, mask, labels in train:
    with accelerator.accumulate(model):
        out = model(input_ids=ids, attention_mask=mask, labels=labels)
        accelerator.backward(out.loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
model.eval()
seen = correct = 0
for ids, mask, labels in test:
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
    found, wanted = accelerator.gather_for_metrics((logits.argmax(-1), labels))
    seen += len(wanted)
    correct += (found == wanted).sum().item()
accelerator.print("seen", seen)
accelerator.save_state(sys.argv[1])
