"""Runs SGLang's engine in this process, over a running fleet. Uses environment.py's Python, with cpu_fix.

    engine.py --model DIR --directory HOST:PORT

Prints a line of JSON for each of two equal requests: its tokens with logprobs, and the source of the prompt's rows.
engine_e2e.py calls it.
"""

import argparse
import json

PROMPT = [(7 * i + 3) % 2000 + 2 for i in range(600)]
PAGE, STEPS = 32, 6


def main():
    import sglang

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--model", "--directory"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    extra = {"backend_name": "ckv", "module_path": "ckv_sglang.hicache", "class_name": "CkvHiCacheStorage",
             "directory": arguments.directory, "model": "test/engine", "revision": "1", "publish": "engine",
             "prefetch_threshold": PAGE, "interface_v1": 1}
    engine = sglang.Engine(
        model_path=arguments.model, device="cpu", attention_backend="torch_native", skip_tokenizer_init=True,
        page_size=PAGE, max_total_tokens=2048, context_length=1024, disable_cuda_graph=True, dtype="bfloat16",
        log_level="warning", enable_hierarchical_cache=True, hicache_ratio=2, hicache_write_policy="write_through",
        hicache_io_backend="direct", hicache_storage_backend="dynamic",
        hicache_storage_prefetch_policy="wait_complete", hicache_storage_backend_extra_config=json.dumps(extra))
    for _ in range(2):
        answer = engine.generate(input_ids=PROMPT, sampling_params={"temperature": 0, "max_new_tokens": STEPS},
                                 return_logprob=True)
        came = answer["meta_info"].get("cached_tokens_details") or {}
        logprobs = [one[0] for one in answer["meta_info"]["output_token_logprobs"]]
        print(json.dumps({"answer": answer["output_ids"], "logprobs": logprobs, "device": came.get("device", 0),
                          "storage": came.get("storage", 0)}), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
