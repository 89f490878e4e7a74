"""TRL's SFTTrainer with LoRA on a text data set, tokenised by a tokenizer from a local folder."""

import sys

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

folder, out = sys.argv[1], sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
data = Dataset.from_dict({"text": ["a b c d e f g h " * 8] * 32})
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=out, per_device_train_batch_size=4, max_length=64, bf16=True, gradient_checkpointing=True, max_steps=3,
        eval_strategy="steps", eval_steps=1, save_steps=1, report_to="none", logging_steps=1,
    ),
    train_dataset=data,
    eval_dataset=data.select(range(8)),
    processing_class=tokenizer,
    peft_config=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
)  # fmt: skip
trainer.train()
trainer.save_model(out)
