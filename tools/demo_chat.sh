#!/usr/bin/env bash
# `make demo-chat`: a real small chat model, and a long document that every question shares. On a
# terminal it is yours to talk with; elsewhere five questions are asked.
set -euo pipefail
cd "$(dirname "$0")/.."

model=$(python3 tools/fetch_smollm.py)
document=docs/samples/lighthouse.md
chat=(build/release/apps/cli/quire chat "$model" --document "$document" --verbose
  --system "Answer briefly from this text." --temperature 0 --max-tokens 60)
questions=("Who designed the tower?" "How many steps does the tower have?"
  "When was the light lit for the first time?" "When was the station automated?"
  "What soup does the café serve?")

echo "document: $document, $(wc -w < "$document") words; computed for the first question, then reused."
echo "A model of 135 million parameters: it speaks in sentences, and is right about simple facts at best."
if [ -t 0 ] && [ -t 1 ]; then
  printf 'Ask, for example:\n'
  printf '  %s\n' "${questions[@]}"
  exec "${chat[@]}"
fi

coproc answers { exec "${chat[@]}" 2>&1; }
for question in "${questions[@]}"; do
  printf '\n> %s\n' "$question"
  printf '%s\n' "$question" >&"${answers[1]}"
  while IFS= read -r line <&"${answers[0]}" || exit 1; do
    printf '%s\n' "$line"
    [[ $line == prompt\ * ]] && break
  done
done
