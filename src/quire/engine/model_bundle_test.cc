// What a model gives beside its weights. A GGUF file: ends of text, and text at all. A folder: a
// chat template.
#include "quire/engine/model_bundle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/context.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/result.h"
#include "quire/weights/test_files.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using weights::testing::counted;
using weights::testing::raw;

// Types of GGUF metadata.
constexpr std::uint32_t kUint32 = 4;
constexpr std::uint32_t kFloat32 = 6;
constexpr std::uint32_t kString = 8;
constexpr std::uint32_t kArray = 9;

class GgufBundle : public ::testing::Test {
 protected:
  GgufBundle() {
    file_.key("general.architecture", kString, counted("llama"));
    set("llama.context_length", 64);
    set("llama.embedding_length", 32);
    set("llama.feed_forward_length", 32);
    set("llama.block_count", 1);
    set("llama.attention.head_count", 1);
    file_.key("llama.attention.layer_norm_rms_epsilon", kFloat32, raw(1e-5f));
    add_zeros("token_embd.weight", {32, 4});
    add_zeros("output_norm.weight", {32});
    for (const char* name : {"attn_norm", "ffn_norm"}) {
      add_zeros(std::string("blk.0.") + name + ".weight", {32});
    }
    for (const char* name :
         {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
      add_zeros(std::string("blk.0.") + name + ".weight", {32, 32});
    }
  }

  void set(std::string_view key, std::uint32_t value) { file_.key(key, kUint32, raw(value)); }

  void add_zeros(std::string_view name, const std::vector<std::uint64_t>& sizes) {
    constexpr std::uint32_t kF32 = 0;
    file_.tensor(name, sizes, kF32, file_.data.size());
    std::uint64_t values = 1;
    for (const std::uint64_t size : sizes) {
      values *= size;
    }
    file_.data.resize(file_.data.size() + values * sizeof(float));
  }

  void add_vocabulary(const std::vector<std::string>& tokens) {
    constexpr std::uint32_t kInt32 = 5;
    constexpr std::int32_t kControl = 3;
    std::string texts = raw(kString) + raw(std::uint64_t{tokens.size()});
    std::string types = raw(kInt32) + raw(std::uint64_t{tokens.size()});
    for (const std::string& token : tokens) {
      texts += counted(token);
      types += raw(kControl);
    }
    file_.key("tokenizer.ggml.model", kString, counted("gpt2"));
    file_.key("tokenizer.ggml.pre", kString, counted("gpt-2"));
    file_.key("tokenizer.ggml.tokens", kArray, texts);
    file_.key("tokenizer.ggml.token_type", kArray, types);
  }

  Result<ModelBundle> load() {
    folder_.write("model.gguf", file_.build());
    const kernels::Context context{.table = &kernels::kernels_for(device::best_isa()),
                                   .pool = &pool_};
    return load_model(context, (folder_.path() / "model.gguf").string(), {});
  }

  weights::testing::GgufBuilder file_;
  weights::testing::TempFolder folder_;
  device::ThreadPool pool_{1};
};

TEST_F(GgufBundle, StopsAtTokensThatEndATurnBesideTheOneThatTheFileStates) {
  add_vocabulary({"<|user|>", "<|endoftext|>", "<|end|>", "<s>"});
  set("tokenizer.ggml.eos_token_id", 1);
  const auto bundle = load();
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  EXPECT_THAT(bundle->eos_token_ids, UnorderedElementsAre(1, 2));
}

// As a folder without tokenizer: it takes token ids.
TEST_F(GgufBundle, AFileWithoutVocabularyLoadsWithoutText) {
  const auto bundle = load();
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  EXPECT_EQ(bundle->text, nullptr);
  EXPECT_THAT(bundle->text_error, HasSubstr("holds no vocabulary"));
}

TEST_F(GgufBundle, AnEndOfTextOfAllBitsIsNone) {
  add_vocabulary({"<|user|>", "<|endoftext|>", "<|end|>", "<s>"});
  set("tokenizer.ggml.eos_token_id", 4294967295U);
  const auto bundle = load();
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  EXPECT_FALSE(bundle->text->tokenizer.eos_token_id().has_value());
}

TEST_F(GgufBundle, AFolderOfOneFileAloneIsTheFile) {
  add_vocabulary({"<|user|>", "<|endoftext|>", "<|end|>", "<s>"});
  set("tokenizer.ggml.eos_token_id", 1);
  ASSERT_TRUE(load().ok());
  EXPECT_EQ(locate(folder_.path().string()).value(), (folder_.path() / "model.gguf").string());
  const auto config = load_config(folder_.path().string());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->hidden_size, 32);
  EXPECT_EQ(load_text(folder_.path().string()).value()->eos_token, "<|endoftext|>");
}

TEST_F(GgufBundle, AFolderOfSeveralFilesAsksForOneOfThem) {
  folder_.write("a.gguf", file_.build());
  folder_.write("b.gguf", file_.build());
  const auto config = load_config(folder_.path().string());
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.error().message, HasSubstr("name one: a.gguf, b.gguf"));
}

class FolderText : public ::testing::Test {
 protected:
  FolderText() {
    std::filesystem::copy_file(QUIRE_SOURCE_DIR "/models/cardfile/model/tokenizer.json",
                               folder_.path() / "tokenizer.json");
  }

  // With this in tokenizer_config.json, as JSON.
  auto with_template(const std::string& chat_template) {
    folder_.write("tokenizer_config.json", R"({"chat_template": )" + chat_template + "}");
    return load_text(folder_.path().string());
  }

  weights::testing::TempFolder folder_;
};

TEST_F(FolderText, AChatTemplateOfAnotherTypeIsRefusedWithItsFileAndType) {
  for (const auto& [chat_template, type] :
       std::map<std::string, std::string>{{"5", "a number"},
                                          {"0.5", "a number"},
                                          {"false", "a bool"},
                                          {R"({"default": "x"})", "an object"}}) {
    const auto text = with_template(chat_template);
    ASSERT_FALSE(text.ok()) << chat_template;
    EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(text.error().message,
                HasSubstr("tokenizer_config.json: \"chat_template\" is " + type));
  }
}

TEST_F(FolderText, AChatTemplateIsAStringOrOneOfAListOrNone) {
  for (const char* some : {R"("x")", R"([{"name": "default", "template": "x"}, 5])"}) {
    EXPECT_TRUE(with_template(some).value()->chat_template) << some;
  }
  for (const char* none : {"null", "[]", R"([{"name": "rag", "template": "x"}])"}) {
    EXPECT_FALSE(with_template(none).value()->chat_template) << none;
  }
}

TEST_F(FolderText, TokensThatOnlyTheMapOfSpecialTokensNamesAreSpecial) {
  const auto id_of_the = [&] {
    const auto text = load_text(folder_.path().string()).value();
    return text->tokenizer.encode("the", {.add_special_tokens = false}).value();
  };
  EXPECT_TRUE(load_text(folder_.path().string()).value()->eos_token.empty());
  folder_.write("special_tokens_map.json", R"({"eos_token": "<eos>", "cls_token": "the"})");
  const auto text = load_text(folder_.path().string()).value();
  EXPECT_EQ(text->eos_token, "<eos>");
  ASSERT_EQ(id_of_the().size(), 1U);
  EXPECT_TRUE(text->tokenizer.is_special(id_of_the().front()));
}

TEST(FolderConfig, EverythingThatIsRefusedIsListedWithItsFile) {
  weights::testing::TempFolder folder;
  folder.write("config.json", R"({"model_type": "llama", "foo": 1, "hidden_act": "gelu",
      "hidden_size": 4, "intermediate_size": 3, "vocab_size": 5, "num_hidden_layers": 1,
      "num_attention_heads": 2})");
  EXPECT_THAT(refused_by_config(folder.path().string()),
              ElementsAre(HasSubstr("config.json: field \"foo\""),
                          HasSubstr("config.json: \"hidden_act\"")));
}

TEST(FolderConfig, AnAdapterThatWouldBeLeftOutIsRefusedWithTheWayOut) {
  weights::testing::TempFolder folder;
  std::filesystem::copy_file(QUIRE_SOURCE_DIR "/models/cardfile/model/config.json",
                             folder.path() / "config.json");
  EXPECT_TRUE(load_config(folder.path().string()).ok());
  folder.write("adapter_config.json", R"({"peft_type": "LORA"})");
  const auto config = load_config(folder.path().string());
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(config.error().message, HasSubstr("adapter_config.json"));
  EXPECT_THAT(config.error().message, HasSubstr("merge_and_unload"));
}

}  // namespace
}  // namespace quire::engine
