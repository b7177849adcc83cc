// The split patterns behind tokenizer.ggml.pre, as llama.cpp pairs them (src/llama-vocab.cpp), in
// the dialect of regex.h. They are data of the models: the split patterns of their tokenizer.json
// files.
#include "quire/text/gguf_pre.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "quire/text/pre_tokenizer_internal.h"

namespace quire::text {
namespace {

constexpr std::string_view kLlama3 =
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)re"
    R"re( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kQwen2 =
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)re"
    R"re( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kQwen35 =
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)re"
    R"re( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kTekken =
    R"re([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|)re"
    R"re([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}|)re"
    R"re( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kGpt4o =
    R"re([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+)re"
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|)re"
    R"re([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*)re"
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}|)re"
    R"re( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kDeepseekLetters =  // cased letters of Unicode 12
    R"re(\s?[)re"
    R"re(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556})re"
    R"re(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})re"
    R"re(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2})re"
    R"re(\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})re"
    R"re(]+)re";
constexpr std::string_view kDeepseekPunctuation =
    R"re(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}\x{3002}]+)re";
// U+0800 to U+D7FF with gaps; without white space, which llama.cpp hides from patterns like this
// one.
constexpr std::string_view kDeepseekCjk =
    R"re([\x{800}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E})re"
    R"re(\x{2060}-\x{2FFF}\x{3001}-\x{9FA5}\x{AC00}-\x{D7FF}]+)re";
constexpr std::string_view kDeepseek3 =
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)re"
    R"re( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kDeepseek3Cjk =
    R"re([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)re";
constexpr std::string_view kBloom =
    R"re( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)re";
constexpr std::string_view kBailing =
    R"re('(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)re"
    R"re( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)re";
constexpr std::string_view kSeedCoder =
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)re"
    R"re( ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kNewlineRuns = R"re([^\n]+|[\n]+)re";

// One row per name; a name that is not here is not supported.
constexpr auto kKinds = std::to_array<std::pair<std::string_view, GgufPre>>({
    {"", {.patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}}},
    {"default",
     {.patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}}},
    {"llama3", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"llama-v3", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"llama-bpe", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"falcon3", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"falcon-h1", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"pixtral", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"midm-2.0", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"lfm2", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"jina-v5-nano", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"dbrx", {.patterns = {kLlama3}}},
    {"smaug-bpe", {.patterns = {kLlama3}}},
    {"chatglm-bpe", {.patterns = {kLlama3}}},
    {"glm4", {.patterns = {kLlama3}, .ignore_merges = true}},
    {"glm5", {.patterns = {kLlama3}, .ignore_merges = true}},
    {"gpt-2", {.patterns = {kGpt2Pattern}}},
    {"phi-2", {.patterns = {kGpt2Pattern}}},
    {"jina-es", {.patterns = {kGpt2Pattern}}},
    {"jina-de", {.patterns = {kGpt2Pattern}}},
    {"gigachat", {.patterns = {kGpt2Pattern}}},
    {"jina-v2-es", {.patterns = {kGpt2Pattern}}},
    {"jina-v2-de", {.patterns = {kGpt2Pattern}}},
    {"a.x-4.0", {.patterns = {kGpt2Pattern}}},
    {"mellum", {.patterns = {kGpt2Pattern}}},
    {"modern-bert", {.patterns = {kGpt2Pattern}}},
    {"jina-v1-en", {.patterns = {kGpt2Pattern}}},
    {"jina-v2-code", {.patterns = {kGpt2Pattern}}},
    {"roberta-bpe", {.patterns = {kGpt2Pattern}}},
    {"exaone4", {.patterns = {kGpt2Pattern}}},
    {"mpt", {.patterns = {kGpt2Pattern}}},
    {"olmo", {.patterns = {kGpt2Pattern}}},
    {"jais", {.patterns = {kGpt2Pattern}}},
    {"trillion", {.patterns = {kGpt2Pattern}}},
    {"granite-docling", {.patterns = {kGpt2Pattern}}},
    {"starcoder", {.patterns = {R"(\p{N})", kGpt2Pattern}}},
    {"refact", {.patterns = {R"(\p{N})", kGpt2Pattern}}},
    {"command-r", {.patterns = {R"(\p{N})", kGpt2Pattern}}},
    {"smollm", {.patterns = {R"(\p{N})", kGpt2Pattern}}},
    {"codeshell", {.patterns = {R"(\p{N})", kGpt2Pattern}}},
    {"exaone", {.patterns = {R"(\p{N})", kGpt2Pattern}}},
    {"minerva-7b", {.patterns = {R"(\p{N})", kGpt2Pattern}}},
    {"mellum2", {.patterns = {R"(\p{N})", kGpt2Pattern}}},
    {"qwen2", {.patterns = {kQwen2}}},
    {"deepseek-r1-qwen", {.patterns = {kQwen2}}},
    {"kormo", {.patterns = {kQwen2}}},
    {"f2llmv2", {.patterns = {kQwen2}}},
    {"megrez", {.patterns = {kQwen2}}},
    {"stablelm2", {.patterns = {kQwen2}}},
    {"hunyuan", {.patterns = {kQwen2}}},
    {"solar-open", {.patterns = {kQwen2}}},
    {"grok-2", {.patterns = {kQwen2}}},
    {"qwen35", {.patterns = {kQwen35}}},
    {"falcon", {.patterns = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Pattern, "[0-9][0-9][0-9]"}}},
    {"deepseek-llm",
     {.patterns = {R"([\r\n])", kDeepseekLetters, kDeepseekPunctuation, R"(\s+$)", kDeepseekCjk,
                   R"(\p{N}+)"}}},
    {"deepseek-coder",
     {.patterns = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekCjk, R"(\p{N})"}}},
    {"deepseek-v3", {.patterns = {R"(\p{N}{1,3})", kDeepseek3Cjk, kDeepseek3}}},
    {"hunyuan-dense", {.patterns = {R"(\p{N}{1,3})", kDeepseek3Cjk, kDeepseek3}}},
    {"joyai-llm", {.patterns = {R"(\p{N}{1,3})", kDeepseek3Cjk, kDeepseek3}}},
    {"hy_v4", {.patterns = {R"(\p{N}{1,3})", kDeepseek3Cjk, kDeepseek3}}},
    {"bloom", {.patterns = {kBloom}}},
    {"poro-chat", {.patterns = {kBloom}}},
    {"gpt3-finnish", {.patterns = {kBloom}}},
    {"viking", {.patterns = {kBloom, R"(\p{N})"}}},
    {"tekken", {.patterns = {kTekken}, .ignore_merges = true, .add_bos = true}},
    {"gpt-4o", {.patterns = {kGpt4o}}},
    {"llama4", {.patterns = {kGpt4o}}},
    {"kanana2", {.patterns = {kGpt4o}}},
    {"talkie", {.patterns = {kGpt4o}}},
    {"minimax-m2", {.patterns = {kGpt4o}}},
    {"superbpe", {.patterns = {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"}}},
    {"bailingmoe", {.patterns = {kBailing}}},
    {"bailingmoe2", {.patterns = {kBailing}}},
    {"llada-moe", {.patterns = {kBailing}}},
    {"seed-coder", {.patterns = {kSeedCoder}}},
    {"laguna", {.patterns = {kNewlineRuns, kQwen2}}},
    {"gemma4",
     {.patterns = {kNewlineRuns}, .add_bos = true, .metaspace = true, .keep_newline_runs = true}},
    {"granite-embed-multi-311m",
     {.patterns = {kNewlineRuns}, .add_bos = true, .metaspace = true, .keep_newline_runs = true}},
    {"sarvam-moe", {.patterns = {kNewlineRuns}, .metaspace = true}},
});

}  // namespace

const GgufPre* find_gguf_pre(std::string_view name) {
  const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const auto& kind) { return kind.first == name; });
  return found != kKinds.end() ? &found->second : nullptr;
}

}  // namespace quire::text
