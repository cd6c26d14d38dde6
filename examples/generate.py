"""Loads a Hugging Face directory with transformers and answers prompts greedily: python generate.py DIR PROMPT..."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

directory, *prompts = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(directory)
model = AutoModelForCausalLM.from_pretrained(directory)
for prompt in prompts:
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    output = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    print(prompt, output[0, inputs.input_ids.shape[1] :].tolist())
