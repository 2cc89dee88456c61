# The Hugging Face Trainer's example under DeepSpeed, on 8 A100 of 40 GB
deepspeed --num_gpus 8 run_clm.py \
    --model_name_or_path meta-llama/Llama-3.1-8B \
    --dataset_name wikitext \
    --block_size 4096 \
    --do_train \
    --bf16 \
    --torch_dtype bfloat16 \
    --gradient_checkpointing \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 2 \
    --deepspeed examples/tutorials/deepspeed/zero2.json \
    --output_dir out
