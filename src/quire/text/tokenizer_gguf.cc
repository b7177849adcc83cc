// Tokenizer::from_vocab: the vocabularies of GGUF files. The reference for ids is llama.cpp
// (src/llama-vocab.cpp); its pipelines are put together here from the same parts that
// tokenizer.json uses. Decoding follows Hugging Face for the same models: one leading space that
// the tokenizer added is dropped again, and there is no clean-up of spaces.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/added_tokens.h"
#include "quire/text/bpe_model.h"
#include "quire/text/charsmap.h"
#include "quire/text/gguf_pre.h"
#include "quire/text/normalizer.h"
#include "quire/text/pattern.h"
#include "quire/text/post_processor.h"
#include "quire/text/pre_tokenizer.h"
#include "quire/text/regex.h"
#include "quire/text/spelling_decoder.h"
#include "quire/text/tokenizer.h"
#include "quire/text/tokenizer_pipeline.h"
#include "quire/text/unigram_model.h"
#include "quire/text/utf8.h"
#include "quire/text/vocab_spec.h"
#include "quire/text/vocabulary.h"
#include "quire/text/word_model.h"
#include "quire/types.h"

namespace quire::text {
namespace {

// Values of tokenizer.ggml.token_type.
enum TokenType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

std::int32_t type_of(const VocabSpec& spec, TokenId id) {
  return spec.token_types.empty() ? static_cast<std::int32_t>(kNormal)
                                  : spec.token_types[static_cast<std::size_t>(id)];
}

// Tells whether a spelling ends a turn. A file that calls such a token user-defined is taken to
// mean control. llama.cpp does so, too, and also for normal tokens, which would hide the HTML of an
// `</s>`.
bool ends_turn(std::string_view token) {
  constexpr std::string_view kEnds[] = {"<|eot_id|>",
                                        "<|im_end|>",
                                        "<|end|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<end_of_turn>",
                                        "<|endoftext|>",
                                        "</s>",
                                        "<|eom_id|>",
                                        "<EOT>",
                                        "[EOT]",
                                        "[EOS]",
                                        "<|end_of_text|>",
                                        "<end_of_utterance>",
                                        "<eos>",
                                        "<turn|>",
                                        "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"};
  return std::find(std::begin(kEnds), std::end(kEnds), token) != std::end(kEnds);
}

Status check(const VocabSpec& spec) {
  const std::size_t count = spec.tokens.size();
  const auto invalid = [](std::string message) {
    return Status(ErrorCode::kInvalidArgument, std::move(message));
  };
  if (count == 0 || count > kMaxVocabulary) {
    return invalid(base::str_cat("vocabulary of ", count, " tokens; 1 to ", kMaxVocabulary));
  }
  if (!spec.scores.empty() && spec.scores.size() != count) {
    return invalid(
        base::str_cat("vocabulary: ", spec.scores.size(), " scores for ", count, " tokens"));
  }
  if (!spec.token_types.empty() && spec.token_types.size() != count) {
    return invalid(base::str_cat("vocabulary: ", spec.token_types.size(), " token types for ",
                                 count, " tokens"));
  }
  if (!std::all_of(spec.scores.begin(), spec.scores.end(),
                   [](float score) { return std::isfinite(score); })) {
    return invalid("vocabulary: a score is not a finite number");
  }
  for (const TokenId id :
       {spec.bos, spec.eos, spec.eot, spec.unk, spec.sep, spec.pad, spec.mask, spec.cls}) {
    if (id < -1 || id >= static_cast<TokenId>(count)) {
      return invalid(
          base::str_cat("vocabulary: special token id ", id, " is outside the ", count, " tokens"));
    }
  }
  return {};
}

// Sets ids that the file leaves open, as llama.cpp fills them in for each model.
void set_default_ids(VocabSpec& spec) {
  const auto end = static_cast<TokenId>(spec.tokens.size());
  const auto set = [&](TokenId& id, TokenId fallback) {
    if (id < 0 && fallback < end) {
      id = fallback;
    }
  };
  if (spec.model == "llama") {
    set(spec.bos, 1);
    set(spec.eos, 2);
    set(spec.unk, 0);
  } else if (spec.model == "bert") {
    set(spec.cls, spec.bos >= 0 ? spec.bos : 101);
    set(spec.unk, 100);
    set(spec.sep, 102);
    set(spec.pad, 0);
    set(spec.mask, 103);
  } else if (spec.model == "t5") {
    set(spec.eos, 1);
    set(spec.unk, 2);
    set(spec.pad, 0);
  }
}

Status add_tokens(const VocabSpec& spec, Vocabulary& vocabulary) {
  for (TokenId id = 0; id < static_cast<TokenId>(spec.tokens.size()); ++id) {
    std::string token = spec.tokens[static_cast<std::size_t>(id)];
    if (token.empty()) {
      token = base::str_cat("[EMPTY_", id, "]");
    }
    if (valid_utf8_prefix(token) != token.size()) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("vocabulary: token ", id, " is not UTF-8: ", base::quoted(token))};
    }
    if (const auto known = vocabulary.find(token)) {
      return {ErrorCode::kInvalidArgument, base::str_cat("vocabulary: tokens ", *known, " and ", id,
                                                         " are both ", base::quoted(token))};
    }
    vocabulary.add(token, id);
    const std::int32_t type = type_of(spec, id);
    if (type == kControl || type == kUnknown || (type == kUserDefined && ends_turn(token)) ||
        id == spec.bos || id == spec.eos || id == spec.eot) {
      vocabulary.mark_special(id);
    }
  }
  return {};
}

std::vector<AddedToken> added_tokens(const VocabSpec& spec, const Vocabulary& vocabulary) {
  std::vector<AddedToken> added;
  for (TokenId id = 0; id < vocabulary.end_id(); ++id) {
    const bool special = vocabulary.is_special(id);
    if (!special && type_of(spec, id) != kUserDefined) {
      continue;
    }
    const std::string_view token = vocabulary.token(id);
    const bool keeps_space = token == "<unk>" || token == "<s>" || token == "<|endoftext|>";
    added.push_back({.content = std::string(token),
                     .id = id,
                     .rstrip = spec.specials_strip_right && !keeps_space,
                     .special = special});
  }
  return added;
}

Result<std::vector<BpeMerge>> parse_merges(const std::vector<std::string>& lines) {
  std::vector<BpeMerge> merges;
  merges.reserve(lines.size());
  for (std::size_t rank = lines.size(); rank-- > 0;) {  // the first of equal merges counts
    const std::string& line = lines[rank];
    const std::size_t space = line.find(' ', 1);
    if (space == std::string::npos || valid_utf8_prefix(line) != line.size()) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("merge ", rank, " must be two tokens, not ", base::quoted(line))};
    }
    merges.push_back({.left = line.substr(0, space),
                      .right = line.substr(space + 1),
                      .rank = static_cast<std::uint32_t>(rank)});
  }
  return merges;
}

std::optional<TokenId> optional_id(TokenId id) {
  return id >= 0 ? std::optional(id) : std::nullopt;
}

std::unique_ptr<const Normalizer> escape_spaces() {
  return make_replace(Pattern::literal(" "), std::string(kMetaspace));
}

// Returns the decoder of models that write spaces as U+2581. Drops a space that encoding put in
// front, if asked.
SpellingDecoder metaspace_decoder(bool drops_leading_space) {
  SpellingDecoder decoder;
  decoder.emplace_back(
      decode::Replace{.pattern = Pattern::literal(std::string(kMetaspace)), .content = " "});
  decoder.emplace_back(decode::ByteFallback{});
  decoder.emplace_back(decode::Fuse{});
  if (drops_leading_space) {
    decoder.emplace_back(decode::Strip{.content = " ", .start = 1, .stop = 0});
  }
  return decoder;
}

PostProcessor bos_and_eos(const VocabSpec& spec, bool add_bos, bool add_eos) {
  PostTemplate around;
  if (add_bos && spec.bos >= 0) {
    around.emplace_back(spec.bos);
  }
  around.emplace_back(std::nullopt);
  if (add_eos && spec.eos >= 0) {
    around.emplace_back(spec.eos);
  }
  return PostProcessor(std::move(around));
}

bool stated_or(int stated, bool fallback) { return stated >= 0 ? stated != 0 : fallback; }

Status build_bpe(const VocabSpec& spec, TokenizerPipeline& pipeline) {
  const std::string_view name = spec.model == "gemma4" ? std::string_view("gemma4") : spec.pre;
  const GgufPre* pre = find_gguf_pre(name);
  if (pre == nullptr) {
    return {ErrorCode::kUnsupported,
            base::str_cat("tokenizer.ggml.pre ", base::quoted(name), " is not supported")};
  }
  for (const std::string_view pattern : pre->patterns) {
    if (!pattern.empty()) {
      QUIRE_TRY(Regex regex, Regex::compile(pattern));
      pipeline.pre_tokenizers.push_back(
          make_split(Pattern::regex(std::move(regex)), SplitBehavior::kIsolated, false));
    }
  }
  if (pre->metaspace) {
    pipeline.normalizers.push_back(escape_spaces());
    pipeline.decoder = metaspace_decoder(false);
  } else {
    pipeline.decoder.emplace_back(decode::ByteLevel{});
  }
  QUIRE_TRY(const std::vector<BpeMerge> merges, parse_merges(spec.merges));
  QUIRE_TRY(auto model, BpeModel::create(pipeline.vocabulary,
                                         {.byte_level = !pre->metaspace,
                                          .byte_fallback = pre->metaspace,
                                          .ignore_merges = pre->ignore_merges,
                                          .keep_newline_runs = pre->keep_newline_runs},
                                         merges, true));
  if (model->never_merges_into_metaspace()) {
    pipeline.pre_tokenizers.push_back(make_metaspace_cut());
  }
  pipeline.model = std::move(model);
  // Gemma 4 files that say otherwise are wrong (llama.cpp overrides them too).
  const bool add_bos = pre->keep_newline_runs || stated_or(spec.add_bos, pre->add_bos);
  pipeline.post_processor = bos_and_eos(spec, add_bos, stated_or(spec.add_eos, false));
  return {};
}

Status build_spm(const VocabSpec& spec, TokenizerPipeline& pipeline) {
  if (spec.scores.empty()) {
    return {ErrorCode::kInvalidArgument, "vocabulary: a llama vocabulary needs scores"};
  }
  const bool add_space_prefix = stated_or(spec.add_space_prefix, true);
  if (add_space_prefix) {
    pipeline.normalizers.push_back(make_prepend(" "));
  }
  pipeline.normalizers.push_back(escape_spaces());
  std::vector<bool> mergeable;
  for (TokenId id = 0; id < pipeline.vocabulary.end_id(); ++id) {
    const std::int32_t type = type_of(spec, id);
    mergeable.push_back(!pipeline.vocabulary.is_special(id) &&
                        (type == kNormal || type == kUserDefined || type == kUnused));
  }
  QUIRE_TRY(
      auto model,
      BpeModel::create(pipeline.vocabulary, {.byte_fallback = true, .unk = optional_id(spec.unk)},
                       merges_from_scores(pipeline.vocabulary, spec.scores, mergeable), true));
  if (model->never_merges_into_metaspace()) {
    pipeline.pre_tokenizers.push_back(make_metaspace_cut());
  }
  pipeline.model = std::move(model);
  pipeline.decoder = metaspace_decoder(add_space_prefix);
  pipeline.post_processor =
      bos_and_eos(spec, stated_or(spec.add_bos, true), stated_or(spec.add_eos, false));
  return {};
}

Status build_wpm(const VocabSpec& spec, TokenizerPipeline& pipeline) {
  if (spec.cls < 0 || spec.sep < 0 || spec.unk < 0) {
    return {ErrorCode::kInvalidArgument,
            "vocabulary: a bert vocabulary needs cls, separator and unknown tokens"};
  }
  const bool lowercase = stated_or(spec.normalizer_lowercase, true);
  pipeline.normalizers.push_back(
      make_bert_normalizer({.keep_control_spaces = true,
                            .strip_accents = stated_or(spec.normalizer_strip_accents, lowercase),
                            .lowercase = lowercase}));
  pipeline.pre_tokenizers.push_back(make_bert_pre_tokenizer());
  pipeline.pre_tokenizers.push_back(make_piece_prefix(std::string(kMetaspace)));
  pipeline.model = std::make_unique<WordPieceModel>(
      pipeline.vocabulary,
      WordPieceOptions{.unk = spec.unk,
                       .continuing_prefix = "",
                       .max_chars_per_word = std::numeric_limits<std::size_t>::max()});
  pipeline.decoder = metaspace_decoder(true);
  pipeline.post_processor = PostProcessor(PostTemplate{spec.cls, std::nullopt, spec.sep});
  return {};
}

Status build_ugm(const VocabSpec& spec, TokenizerPipeline& pipeline) {
  if (spec.scores.empty() || spec.unk < 0) {
    return {ErrorCode::kInvalidArgument,
            "vocabulary: a t5 vocabulary needs scores and an unknown token"};
  }
  const bool add_space_prefix = stated_or(spec.add_space_prefix, false);
  SentencePieceNormalization normalization = {
      .add_space_prefix = add_space_prefix,
      .remove_extra_whitespaces = spec.remove_extra_whitespaces,
      .escape_whitespaces = spec.escape_whitespaces};
  if (!spec.precompiled_charsmap.empty()) {
    QUIRE_TRY(normalization.charsmap, Charsmap::parse(spec.precompiled_charsmap));
  }
  std::vector<double> scores;
  double min_score = std::numeric_limits<double>::max();
  for (TokenId id = 0; id < pipeline.vocabulary.end_id(); ++id) {
    const std::int32_t type = type_of(spec, id);
    const double score = static_cast<double>(spec.scores[static_cast<std::size_t>(id)]);
    scores.push_back(-std::numeric_limits<double>::infinity());
    if (type == kNormal || type == kUnused) {
      scores.back() = score;
    }
    if (type == kNormal) {
      min_score = std::min(min_score, score);
    }
    if (type == kUserDefined) {
      scores.back() = 0.0;
      normalization.kept.emplace_back(pipeline.vocabulary.token(id));
    }
  }
  pipeline.normalizers.push_back(make_sentencepiece_normalizer(std::move(normalization)));
  pipeline.model = std::make_unique<UnigramModel>(pipeline.vocabulary, std::move(scores), min_score,
                                                  UnigramOptions{.unk = spec.unk});
  pipeline.decoder = metaspace_decoder(add_space_prefix);
  pipeline.post_processor =
      bos_and_eos(spec, stated_or(spec.add_bos, false), stated_or(spec.add_eos, true));
  return {};
}

std::string fingerprint_of(const VocabSpec& spec) {
  base::FieldHasher hasher;
  hasher.add("gguf").add(spec.model).add(spec.pre).add(spec.precompiled_charsmap);
  hasher.add_int(static_cast<std::int64_t>(spec.tokens.size()));
  for (const std::string& token : spec.tokens) {
    hasher.add(token);
  }
  hasher.add_bytes(std::as_bytes(std::span(spec.scores)));
  hasher.add_bytes(std::as_bytes(std::span(spec.token_types)));
  for (const std::string& merge : spec.merges) {
    hasher.add(merge);
  }
  for (const int value :
       {spec.bos, spec.eos, spec.eot, spec.unk, spec.sep, spec.pad, spec.mask, spec.cls,
        spec.add_bos, spec.add_eos, spec.add_space_prefix, int{spec.remove_extra_whitespaces},
        int{spec.escape_whitespaces}, spec.normalizer_lowercase, spec.normalizer_strip_accents,
        int{spec.specials_strip_right}}) {
    hasher.add_int(value);
  }
  return base::to_hex(hasher.finish());
}

}  // namespace

Result<Tokenizer> Tokenizer::from_vocab(VocabSpec spec) {
  using Build = Status (*)(const VocabSpec&, TokenizerPipeline&);
  constexpr std::pair<std::string_view, Build> kModels[] = {{"gpt2", build_bpe},
                                                            {"gemma4", build_bpe},
                                                            {"llama", build_spm},
                                                            {"bert", build_wpm},
                                                            {"t5", build_ugm}};
  const auto* const found = std::find_if(std::begin(kModels), std::end(kModels),
                                         [&](const auto& row) { return row.first == spec.model; });
  if (found == std::end(kModels)) {
    return {ErrorCode::kUnsupported,
            base::str_cat("tokenizer.ggml.model ", base::quoted(spec.model), " is not supported")};
  }
  QUIRE_TRY_STATUS(check(spec));
  auto pipeline = std::make_unique<TokenizerPipeline>();
  pipeline->fingerprint = fingerprint_of(spec);
  set_default_ids(spec);
  QUIRE_TRY_STATUS(add_tokens(spec, pipeline->vocabulary));
  for (TokenId id = 0; id < pipeline->vocabulary.end_id(); ++id) {
    if (pipeline->vocabulary.is_special(id) && ends_turn(pipeline->vocabulary.token(id))) {
      pipeline->turn_end_ids.push_back(id);
    }
  }
  QUIRE_TRY_STATUS(pipeline->set_added_tokens(added_tokens(spec, pipeline->vocabulary)));
  QUIRE_TRY_STATUS(found->second(spec, *pipeline));
  pipeline->ids = {.bos = optional_id(spec.bos),
                   .eos = optional_id(spec.eos),
                   .pad = optional_id(spec.pad),
                   .unk = optional_id(spec.unk)};
  pipeline->name_tokens();
  return Tokenizer(std::move(pipeline));
}

}  // namespace quire::text
