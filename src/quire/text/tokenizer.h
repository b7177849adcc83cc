// Text to token ids and back, as the model's own files define it.
//
// Thread rule: immutable after loading; any number of threads may call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/named_token.h"  // IWYU pragma: export
#include "quire/text/normal_text.h"
#include "quire/text/vocab_spec.h"
#include "quire/types.h"

namespace quire::text {

struct EncodeOptions {
  bool add_special_tokens = true;    // run the post-processor (BOS, EOS, [CLS] ...)
  bool parse_special = true;         // special tokens written in the text become their ids; when
                                     // false their spelling is ordinary text (user input)
  base::WorkMeter* meter = nullptr;  // counts the work; null: one of its own
};

// A piece of a prompt and its author, who decides whether special tokens in it count.
struct TextSpan {
  std::string_view text;
  Author author = Author::kTemplate;
};

struct TokenizerPipeline;

class Tokenizer {
 public:
  // Makes a tokenizer from the text of tokenizer.json. The other texts are tokenizer_config.json
  // and special_tokens_map.json, or empty. Special tokens that only these name are added.
  [[nodiscard]] static Result<Tokenizer> from_json(std::string_view tokenizer_json,
                                                   std::string_view config_json,
                                                   std::string_view special_tokens_map_json = {});
  // Makes a tokenizer from the metadata of a GGUF file; the ids of llama.cpp are the reference.
  [[nodiscard]] static Result<Tokenizer> from_vocab(VocabSpec spec);
  // Makes a tokenizer from a sentencepiece tokenizer.model file (through libsentencepiece). The
  // texts are the files beside it, or empty: tokenizer_config.json, special_tokens_map.json,
  // added_tokens.json.
  [[nodiscard]] static Result<Tokenizer> from_sentencepiece(
      const std::string& path, std::string_view config_json,
      std::string_view special_tokens_map_json = {}, std::string_view added_tokens_json = {});
  // Makes a tokenizer from a model folder: from tokenizer.json, else tokenizer.model, with the
  // files beside it.
  [[nodiscard]] static Result<Tokenizer> from_folder(const std::string& folder);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Encodes any bytes; ill-formed UTF-8 is replaced by U+FFFD, and then read as by the reference
  // library. kInvalidArgument names the limit of work_limits.h that the work exceeds. kCancelled
  // when the meter's caller interrupts.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    const EncodeOptions& options = {}) const;
  // Encodes the spans of one text as one text: normalizers, pieces and merges cross span borders,
  // as in the original. Adds no special tokens. A special token counts where no byte of it is a
  // user's, some byte is the template's, and each name that it touches lies inside.
  [[nodiscard]] Result<std::vector<TokenId>> encode_spans(std::span<const TextSpan> spans,
                                                          base::WorkMeter* meter = nullptr) const;

  // Decodes ids; an id without a token gives no text. kInvalidArgument naming the first id outside
  // of the vocabulary and its padding. Other errors: those of encode().
  [[nodiscard]] Result<std::string> decode(std::span<const TokenId> ids,
                                           bool skip_special_tokens = true,
                                           base::WorkMeter* meter = nullptr) const;

  // Sets the number of rows of the model, which may be more than the vocabulary has ids.
  void set_padded_size(std::int32_t num_ids) { padded_size_ = num_ids; }

  [[nodiscard]] std::int32_t vocab_size() const;  // highest id + 1
  // Returns the vocabulary's own spelling of an id ("Ġthe"); kInvalidArgument when there is none.
  [[nodiscard]] Result<std::string> id_to_token(TokenId id) const;
  [[nodiscard]] std::optional<TokenId> token_to_id(std::string_view token) const;
  [[nodiscard]] bool is_special(TokenId id) const;
  [[nodiscard]] std::optional<TokenId> bos_token_id() const;
  [[nodiscard]] std::optional<TokenId> eos_token_id() const;
  // Returns the control tokens of a GGUF vocabulary whose spelling ends a turn or a text, as
  // llama.cpp has them. Empty elsewhere: a folder's configuration says which tokens end a text.
  [[nodiscard]] const std::vector<TokenId>& turn_end_ids() const;
  [[nodiscard]] std::optional<TokenId> pad_token_id() const;
  [[nodiscard]] std::optional<TokenId> unk_token_id() const;
  // Returns the tokens of transformers' special_tokens_map.
  [[nodiscard]] const std::vector<NamedToken>& named_tokens() const;
  // Returns whether texts meet at this token as if each stood alone. A text before it and one that
  // begins with it then have the same ids together as apart.
  [[nodiscard]] bool stands_apart(TokenId id) const;
  // Returns whether encoding the text of `ids` gives them again. Cost: decoding and encoding.
  [[nodiscard]] bool retokenizes_alike(std::span<const TokenId> ids) const;
  // Returns a digest of everything that decides encode(); equal for equal tokenizers in every
  // process.
  [[nodiscard]] std::string fingerprint() const;

  // Returns the steps that the tokenizer consists of.
  [[nodiscard]] const TokenizerPipeline& pipeline() const { return *pipeline_; }

 private:
  explicit Tokenizer(std::unique_ptr<const TokenizerPipeline> pipeline);
  std::unique_ptr<const TokenizerPipeline> pipeline_;
  std::int32_t padded_size_ = 0;
};

}  // namespace quire::text
