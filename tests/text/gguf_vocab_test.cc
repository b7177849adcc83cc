// llama.cpp's own test vocabularies: the ids of its *.out files, and every file loads.
// Needs tools/fetch_vocabs.py. Skipped where it has not run, unless QUIRE_REQUIRE_FETCHED=1.
#include "quire/engine/gguf_vocab.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/text/detokenizer.h"
#include "quire/text/tokenizer.h"
#include "quire/weights/gguf.h"

namespace quire::text {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(QUIRE_SOURCE_DIR) / ".cache" / "llama-vocabs";

std::vector<std::string> vocab_names() {
  std::vector<std::string> names;
  if (fs::exists(kFolder / "complete")) {
    for (const auto& entry : fs::directory_iterator(kFolder)) {
      if (entry.path().extension() == ".gguf") {
        names.push_back(entry.path().stem().string());
      }
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Inputs are separated by a line "__ggml_vocab_test__"; outputs are one line of ids each.
std::vector<std::string> read_inputs(const fs::path& path) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  const std::string all = base::read_file(path).value();
  std::vector<std::string> inputs;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find(separator, at), all.size());
    inputs.push_back(all.substr(at, end - at));
    at = end + separator.size();
  }
  return inputs;
}

std::vector<std::vector<TokenId>> read_outputs(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::vector<TokenId>> outputs;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    outputs.emplace_back();
    for (TokenId id = 0; words >> id;) {
      outputs.back().push_back(id);
    }
  }
  return outputs;
}

Result<Tokenizer> load(const std::string& name) {
  QUIRE_TRY(const base::MappedFile file, base::MappedFile::open(kFolder / (name + ".gguf")));
  QUIRE_TRY(const weights::GgufFile gguf, weights::GgufFile::parse(file.bytes(), name));
  QUIRE_TRY(VocabSpec spec, engine::vocab_from_gguf(gguf));
  return Tokenizer::from_vocab(std::move(spec));
}

TEST(GgufVocabs, AreFetched) {
  const char* required = std::getenv("QUIRE_REQUIRE_FETCHED");
  if (vocab_names().empty() && (required == nullptr || std::string(required) != "1")) {
    GTEST_SKIP() << "run tools/fetch_vocabs.py";
  }
  EXPECT_GE(vocab_names().size(), 19U) << "run tools/fetch_vocabs.py";
}

class GgufVocab : public testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GgufVocab);

TEST_P(GgufVocab, GivesTheIdsOfLlamaCpp) {
  const auto tokenizer = load(GetParam());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const fs::path inputs_path = kFolder / (GetParam() + ".gguf.inp");
  if (!fs::exists(inputs_path)) {
    return;  // a vocabulary without recorded ids: loading is the test
  }
  const auto inputs = read_inputs(inputs_path);
  const auto outputs = read_outputs(kFolder / (GetParam() + ".gguf.out"));
  ASSERT_EQ(inputs.size(), outputs.size());
  ASSERT_GT(inputs.size(), 40U);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(tokenizer.value()
                  .encode(inputs[i], {.add_special_tokens = false, .parse_special = false})
                  .value(),
              outputs[i])
        << inputs[i];
  }
}

TEST_P(GgufVocab, DecodesItsOwnIdsAndStreamsThem) {
  const auto tokenizer = load(GetParam());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  for (const std::string text : {"Hello, World! 3333 apples", "tabs\tand\n\n\nlines  "}) {
    const auto ids = tokenizer.value().encode(text, {.add_special_tokens = false}).value();
    const std::string decoded = tokenizer.value().decode(ids).value();
    Detokenizer stream(tokenizer.value());
    std::string streamed;
    for (const TokenId id : ids) {
      streamed += stream.push(id);
    }
    EXPECT_EQ(streamed.append(stream.flush()), decoded);
    if (GetParam().find("bert") == std::string::npos) {  // which fold case and spaces
      EXPECT_EQ(decoded, text);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufVocab, testing::ValuesIn(vocab_names()), [](const auto& info) {
  std::string name = info.param.substr(std::string("ggml-vocab-").size());
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace quire::text
