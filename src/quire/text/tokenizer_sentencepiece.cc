// Tokenizer::from_sentencepiece: a tokenizer.model through libsentencepiece, which segments; ids,
// special tokens and decoding are ours.
#include <sentencepiece_processor.h>

#include <string>
#include <utility>

#include "quire/base/json.h"
#include "quire/base/mapped_file.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/text/tokenizer.h"
#include "quire/text/tokenizer_config.h"
#include "quire/text/tokenizer_impl.h"
#include "quire/text/utf8.h"

namespace quire::text {
namespace {

class SentencePieceModel final : public Model {
 public:
  explicit SentencePieceModel(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor)
      : processor_(std::move(processor)) {}
  void tokenize(std::string_view piece, ModelScratch& /*scratch*/,
                std::vector<TokenId>& out) const override {
    std::vector<int> ids;
    if (processor_->Encode(piece, &ids).ok()) {
      out.insert(out.end(), ids.begin(), ids.end());
    }
  }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace

Result<Tokenizer> Tokenizer::from_sentencepiece(const std::filesystem::path& path,
                                                std::string_view config_json) {
  QUIRE_TRY(const std::string bytes, base::read_file(path));
  QUIRE_TRY(TokenizerConfig config, parse_tokenizer_config(config_json));
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto(bytes);
  if (!status.ok()) {
    return {ErrorCode::kCorrupt, base::str_cat(path.string(), ": not a sentencepiece model: ",
                                               status.ToString())};
  }
  (void)config;
  return {ErrorCode::kUnsupported, "in work"};
}

}  // namespace quire::text
