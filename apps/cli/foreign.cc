#include "foreign.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {
namespace {

// Words of other tools between blanks, and what there is for each of them here.
struct Foreign {
  std::string_view words;
  std::string_view here;
};

constexpr std::string_view kContextGrows =
    "a context grows up to the model's own length; --kv-budget bounds the memory of its KV";
constexpr std::string_view kLocal =
    "Quire downloads nothing; give the path of a Hugging Face folder or of a .gguf file, or the "
    "owner/name of a model in the local Hugging Face cache";
constexpr std::string_view kNotYet = "Quire does not have it yet";
constexpr std::string_view kModelSays = "the files of the model say it";
constexpr std::string_view kAlways = "Quire always does it, so leave it out";
constexpr std::string_view kNeverAsked = "nothing is to be set here, so leave it out";
constexpr std::string_view kPrefixes =
    "prefixes are always reused; --no-prefix-cache leaves that out, --store keeps chunks";
constexpr std::string_view kServes = "quire serve MODEL serves a model over HTTP";
constexpr std::string_view kNothingStays =
    "no process stays behind: a command loads its model and takes it along when it ends";
constexpr std::string_view kModelsAreFiles =
    "models are folders and files of yours: quire inspect MODEL shows one, quire store ls DIR what "
    "a store holds";
constexpr std::string_view kPacks =
    "--quantize packs weights while a model is loaded, and --cache-weights keeps them";

// Lists options of llama.cpp's programs, vLLM, SGLang, transformers and Ollama.
constexpr Foreign kOptions[] = {
    {"-m --model --model-path", kModelAlone},
    {"-p --prompt", kPromptAlone},
    {"-n --predict --n-predict --num-predict --max-new-tokens --max-completion-tokens --max-length",
     "--max-tokens"},
    {"--min-new-tokens", "--min-tokens"},
    {"--temp", "--temperature"},
    {"--do-sample --greedy", "--temperature (0 is greedy)"},
    {"-f --file", "--prompt-file"},
    {"-s --random-seed", "--seed"},
    {"-t --num-thread --num-threads --n-threads -tb --threads-batch", "--threads"},
    {"-b --batch-size -ub --ubatch-size --n-batch --num-batch --max-num-batched-tokens "
     "--chunked-prefill-size",
     "--max-batch-tokens"},
    {"--block-size --page-size", "--block-tokens"},
    {"-sys --system-prompt -sysf --system-prompt-file", "--system"},
    {"-ctk -ctv --cache-type-k --cache-type-v --kv-cache-dtype --type-k --type-v", "--kv-dtype"},
    {"--torch-dtype --precision", "--dtype"},
    {"--quantization --load-format --load-in-4bit --load-in-8bit", "--quantize"},
    {"--repeat-penalty", "--repetition-penalty"},
    {"-r --reverse-prompt --stop-sequences", "--stop"},
    {"--n-probs --top-logprobs", "--logprobs"},
    {"-v --verbose-prompt --timings --show-timings", "--verbose"},
    {"--json", "--format json"},
    {"-o --output-format", "--format"},
    {"-ngl --gpu-layers --n-gpu-layers --num-gpu", "--device cuda"},
    {"-dev --device-map -mg --main-gpu", "--device"},
    {"-no-cnv --no-conversation", "--raw"},
    {"--gpu-memory-utilization --mem-fraction-static --kv-cache-memory-bytes --kv-budget-bytes",
     "--kv-budget"},
    {"-c --ctx-size --num-ctx --n-ctx --max-model-len --max-seq-len --context-length",
     kContextGrows},
    {"-i -if -ins -cnv --interactive --interactive-first --instruct --conversation", kTalks},
    {"-st --single-turn", kAnswers},
    {"-hf -hfr --hf --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo "
     "--download-dir --revision --insecure",
     kLocal},
    {"--enable-prefix-caching --prompt-cache --cache-prompt --cache-reuse", kPrefixes},
    {"-fa --flash-attn -cb --cont-batching --enable-chunked-prefill --jinja --stream --show-count "
     "--escape",
     kAlways},
    {"--mlock --mmap --no-mmap --numa --color --simple-io --log-disable --no-warmup --nowordwrap "
     "--no-display-prompt --enforce-eager --parallel -np --max-num-seqs --disable-log-stats "
     "--swap-space --low-vram",
     kNeverAsked},
    {"--keepalive --keep-alive", kNothingStays},
    {"--rope-scaling --rope-freq-base --rope-freq-scale --tokenizer --tokenizer-mode "
     "--trust-remote-code --hf-overrides",
     kModelSays},
    {"--host --port --api-key-file", kServes},
    {"--api-key", "quire serve takes --api-key-file or QUIRE_API_KEY"},
    {"--served-model-name", "quire serve takes --alias"},
    {"--chat-template-file", "--chat-template"},
    {"-tp --tensor-parallel-size --pipeline-parallel-size --data-parallel-size -ts --tensor-split "
     "-sm --split-mode --grammar --grammar-file --json-schema -j --lora --lora-scaled "
     "--enable-lora "
     "-md --model-draft --draft --draft-max --speculative-config --speculative-model --mmproj "
     "--image --embedding --mirostat --typical --typical-p --dry-multiplier --xtc-probability "
     "--samplers --sampling-seq --repeat-last-n --keep --num-keep --tools "
     "--chat-template-kwargs --guided-decoding-backend --cpu-offload-gb",
     kNotYet},
};

// Letters that mean an option of some commands, and something else for the others.
constexpr Foreign kLetters[] = {{"-p", "--prompt"}, {"-n", "--generate"}, {"-d", "--depth"}};

constexpr Foreign kCommands[] = {
    {"server start launch api", kServes},
    {"list ls rm cp models", kModelsAreFiles},
    {"pull push create download login signin", kLocal},
    {"ps stop unload", kNothingStays},
    {"show info", "quire inspect MODEL shows what a model holds"},
    {"generate complete infer", kAnswers},
    {"cli main", "quire chat MODEL talks, quire run MODEL PROMPT answers one prompt"},
    {"benchmark", "quire bench MODEL measures"},
    {"quantize convert", kPacks},
    {"embed embedding embeddings", "this version makes no embeddings"},
    {"perplexity", kNotYet},
};

constexpr Foreign kSame[] = {
    {"delete del remove erase", "rm"}, {"ls", "list"},          {"list", "ls"},
    {"get info inspect", "show"},      {"register put", "add"}, {"check", "verify"},
};

// Returns what stands for the first list that has the word, "" if none has.
std::string_view here_for(std::span<const Foreign> lists, std::string_view word) {
  const auto has = [word](const Foreign& list) {
    for (std::string_view rest = list.words; !rest.empty();) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      if (rest.substr(0, end) == word) {
        return true;
      }
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return false;
  };
  const auto found = std::ranges::find_if(lists, has);
  return found == lists.end() ? std::string_view() : found->here;
}

}  // namespace

std::string_view foreign_option(std::string word, const std::vector<std::string>& names) {
  std::ranges::replace(word, '_', '-');
  for (const auto& [there, here] : kLetters) {
    if (there == word && std::ranges::find(names, here) != names.end()) {
      return here;
    }
  }
  return here_for(kOptions, word);
}

std::string foreign_command(const std::string& word) {
  const bool is_model = word.find('/') != std::string::npos || word.ends_with(".gguf");
  return is_model ? std::string(kTalks) + ", " + std::string(kAnswers)
                  : std::string(here_for(kCommands, word));
}

std::string_view same_command(std::string_view word) { return here_for(kSame, word); }

}  // namespace quire::cli
