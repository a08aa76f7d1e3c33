r"""Two small tasks for lm-eval: a served model must score as transformers does on its weights.

In a throw-away environment (torch, transformers, lm-eval[api], this tree's own needs), with MODEL
a converted directory that `onebit serve -m MODEL --numerics exact` answers for on port 8080:

    python -m tests.lm_eval.make_hf_model MODEL /tmp/hf
    cd tests/lm_eval; export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
    lm_eval --include_path . --tasks onebit_choices,onebit_answers --log_samples \
        --model hf --model_args pretrained=/tmp/hf,dtype=float32 --device cpu --output_path /tmp/a
    lm_eval --include_path . --tasks onebit_choices,onebit_answers --log_samples \
        --model local-completions --output_path /tmp/b --model_args \
        model=NAME,base_url=http://127.0.0.1:8080/v1/completions,tokenizer=/tmp/hf
    cd ../..; python -m tests.lm_eval.compare /tmp/a /tmp/b

`local-chat-completions` takes onebit_answers with `--apply_chat_template`, on both sides.
"""
