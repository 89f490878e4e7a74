"""The Hugging Face Trainer: device_map=auto, LoRA, bfloat16, gradient checkpointing, evaluation with metrics."""

import sys

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

folder, out = sys.argv[1], sys.argv[2]


class Texts(Dataset):
    """Random tokens."""

    def __init__(self, count):
        self.ids = torch.randint(0, 1000, (count, 128))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {
            "input_ids": self.ids[index],
            "labels": self.ids[index],
            "attention_mask": torch.ones(128).long(),
        }


def metrics(prediction):
    logits, labels = prediction
    return {"accuracy": float(np.mean(logits.argmax(-1)[:, :-1] == labels[:, 1:]))}


model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="auto")
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
model.print_trainable_parameters()
arguments = TrainingArguments(
    out, per_device_train_batch_size=2, gradient_accumulation_steps=2, bf16=True, gradient_checkpointing=True, max_steps=3,
    logging_steps=1, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, report_to="none",
)  # fmt: skip
trainer = Trainer(
    model=model, args=arguments, train_dataset=Texts(32), eval_dataset=Texts(4), compute_metrics=metrics
)
trainer.train()
trainer.save_model()
