import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.pop('labels'); x = model(**inputs).logits
        return nn.CrossEntropyLoss(weight=self.weights)(x.view(-1, 3), labels)
model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B", num_labels=3)
Own(model=model, args=TrainingArguments(per_device_train_batch_size=2)).train()
