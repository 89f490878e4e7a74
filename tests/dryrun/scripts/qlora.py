"""QLoRA: nf4 with double quantisation by bitsandbytes, peft, the Trainer with a paged optimizer."""

import sys

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

folder, out = sys.argv[1], sys.argv[2]


class Texts(Dataset):
    """Random tokens."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (128,))
        return {"input_ids": ids, "labels": ids}


quantization = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantization, device_map={"": 0})
print("loaded", torch.cuda.memory_allocated())
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
arguments = TrainingArguments(
    out, per_device_train_batch_size=2, bf16=True, gradient_checkpointing=True, max_steps=2, logging_steps=1,
    save_strategy="no", report_to="none", optim="adamw_torch",
)  # fmt: skip
Trainer(model=model, args=arguments, train_dataset=Texts()).train()
print("trained", torch.cuda.memory_allocated())
