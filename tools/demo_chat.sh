#!/usr/bin/env bash
# `make demo-chat`: a real small chat model, and a long document that every question shares. On a
# terminal it is yours to talk with; elsewhere three questions are asked.
set -euo pipefail
cd "$(dirname "$0")/.."

model=$(python3 tools/fetch_smollm.py)
chat=(build/release/apps/cli/quire chat "$model" --document docs/samples/lighthouse.md --verbose
  --system "Answer briefly from this text." --temperature 0 --max-tokens 120)

echo "document: docs/samples/lighthouse.md; its KV is computed for the first question, then reused."
echo "(135 million parameters: it answers in sentences, not always rightly)"
if [ -t 0 ] && [ -t 1 ]; then
  exec "${chat[@]}"
fi
questions=("Who was the first principal keeper?" "How many steps does the tower have?"
  "What was the name of the goat?")
printf 'question: %s\n' "${questions[@]}"
printf '%s\n' "${questions[@]}" | "${chat[@]}"
