// Tests the parts of a model beside its weights. A GGUF file: ends of text, and text at all. A
// folder: a chat template.
#include "quire/engine/model_bundle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/result.h"
#include "quire/types.h"
#include "quire/weights/test_files.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;
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
    const kernels::KernelContext context{.table = &kernels::kernels_for(device::best_isa()),
                                         .pool = &pool_};
    return open_model(context, (folder_.path() / "model.gguf").string(), {});
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

// It takes token ids, like a folder without tokenizer.
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

// llama.cpp takes its defaults for such ids; bos, eos and eot begin and end texts here.
TEST_F(GgufBundle, IdsOutsideTheVocabularyCountAsAbsentInRolesThatNothingReads) {
  add_vocabulary({"<|user|>", "<|endoftext|>", "<|end|>", "<s>"});
  set("tokenizer.ggml.eos_token_id", 1);
  for (const char* role : {"unknown", "seperator", "padding", "mask", "cls"}) {
    set(std::string("tokenizer.ggml.") + role + "_token_id", 4);
  }
  const auto bundle = load();
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  EXPECT_EQ(bundle->text->tokenizer.pad_token_id(), std::nullopt);
  EXPECT_EQ(bundle->text->tokenizer.unk_token_id(), std::nullopt);
  set("tokenizer.ggml.bos_token_id", 4);
  EXPECT_THAT(load().error().message, HasSubstr("tokenizer.ggml.bos_token_id is 4"));
}

TEST_F(GgufBundle, ANameThatIsNoTextIsNoName) {
  add_vocabulary({"<|user|>", "<|endoftext|>", "<|end|>", "<s>"});
  set("general.name", 7);
  EXPECT_TRUE(load().ok());
}

TEST_F(GgufBundle, AFileOfAnyNameIsKnownByItsContent) {
  add_vocabulary({"<|user|>", "<|endoftext|>", "<|end|>", "<s>"});
  for (const char* name : {"sha256-0123abcd", "X.GGUF"}) {
    folder_.write(name, file_.build());
    const std::string path = folder_.path() / name;
    EXPECT_EQ(locate(path).value(), path);
    EXPECT_TRUE(read_config(path).ok()) << name;
    EXPECT_TRUE(open_text(path).ok()) << name;
  }
  folder_.write("notes.txt", "text");
  EXPECT_THAT(locate(folder_.path() / "notes.txt").error().message, HasSubstr("nor a GGUF file"));
}

TEST_F(GgufBundle, NamedTemplatesAloneAreListed) {
  add_vocabulary({"<|user|>", "<|endoftext|>", "<|end|>", "<s>"});
  file_.key("tokenizer.chat_template.rag", kString, counted("x"));
  const auto bundle = load();
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  EXPECT_THAT(bundle->text->template_error, HasSubstr("chat templates named \"rag\""));
}

TEST_F(GgufBundle, AFolderOfOneFileAloneIsTheFile) {
  add_vocabulary({"<|user|>", "<|endoftext|>", "<|end|>", "<s>"});
  set("tokenizer.ggml.eos_token_id", 1);
  ASSERT_TRUE(load().ok());
  EXPECT_EQ(locate(folder_.path().string()).value(), (folder_.path() / "model.gguf").string());
  const auto config = read_config(folder_.path().string());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->hidden_size, 32);
  EXPECT_EQ(open_text(folder_.path().string()).value()->eos_token, "<|endoftext|>");
}

TEST_F(GgufBundle, AFolderOfSeveralFilesAsksForOneOfThem) {
  folder_.write("a.gguf", file_.build());
  folder_.write("b.gguf", file_.build());
  const auto config = read_config(folder_.path().string());
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.error().message, HasSubstr("name one: a.gguf, b.gguf"));
}

class FolderText : public ::testing::Test {
 protected:
  FolderText() {
    std::filesystem::copy_file(QUIRE_SOURCE_DIR "/models/cardfile/model/tokenizer.json",
                               folder_.path() / "tokenizer.json");
  }

  // Makes a bundle with this in tokenizer_config.json, as JSON.
  auto with_template(const std::string& chat_template) {
    folder_.write("tokenizer_config.json", R"({"chat_template": )" + chat_template + "}");
    return open_text(folder_.path().string());
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

// transformers raises an error that lists them.
TEST_F(FolderText, AListOfTemplatesWithoutADefaultSaysWhichThereAre) {
  const auto text = with_template(R"([{"name": "rag", "template": "x"},
                                      {"name": "tool_use", "template": "y"}])");
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_FALSE((*text)->chat_template);
  EXPECT_TRUE((*text)->tool_template);
  EXPECT_FALSE((*text)->template_unusable);
  EXPECT_EQ((*text)->template_error,
            "the model has chat templates named \"rag\", \"tool_use\" and none named \"default\"; "
            "copy the one to use to chat_template.jinja");
  std::filesystem::remove(folder_.path() / "tokenizer_config.json");
  std::filesystem::create_directory(folder_.path() / "additional_chat_templates");
  folder_.write("additional_chat_templates/short.jinja", "x");
  EXPECT_THAT(open_text(folder_.path().string()).value()->template_error,
              HasSubstr("named \"short\" and none"));
}

TEST_F(FolderText, AnErrorNamesTheFileThatIsBroken) {
  const auto message = [&] {
    const auto text = open_text(folder_.path().string());
    return text.ok() ? std::string("accepted") : text.error().message;
  };
  const auto in_folder = [&](const char* name) { return (folder_.path() / name).string() + ": "; };
  folder_.write("tokenizer_config.json", "{");
  EXPECT_THAT(message(), StartsWith(in_folder("tokenizer_config.json") + "not valid JSON"));
  folder_.write("tokenizer_config.json", R"({"added_tokens_decoder": 5})");
  EXPECT_THAT(message(), StartsWith(in_folder("tokenizer_config.json") + "added_tokens_decoder"));
  folder_.write("tokenizer_config.json", R"({"model_max_length": Infinity})");
  EXPECT_EQ(message(), "accepted");
  folder_.write("special_tokens_map.json", R"({"eos_token": 5})");
  EXPECT_THAT(message(), StartsWith(in_folder("special_tokens_map.json") + "key \"eos_token\""));
  folder_.write("special_tokens_map.json", "{}");
  folder_.write("tokenizer.json", "{");
  EXPECT_THAT(message(), StartsWith(in_folder("tokenizer.json") + "not valid JSON"));
}

// Opening a pipe that nobody writes to would wait for ever, and SIGINT would not end it.
TEST_F(FolderText, APipeInPlaceOfAnyFileIsRefusedAndNotWaitedFor) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "tokenizer.json",
                           "chat_template.jinja", "chat_template.json"}) {
    const std::filesystem::path path = folder_.path() / name;
    const std::filesystem::path kept = folder_.path() / "kept";
    const bool is_there = std::filesystem::exists(path);
    if (is_there) {
      std::filesystem::rename(path, kept);
    }
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    const auto text = open_text(folder_.path().string());
    ASSERT_FALSE(text.ok()) << name;
    EXPECT_EQ(text.error().message, "cannot read " + path.string() + ": not a regular file");
    std::filesystem::remove(path);
    if (is_there) {
      std::filesystem::rename(kept, path);
    }
  }
}

TEST_F(FolderText, TokensThatOnlyTheMapOfSpecialTokensNamesAreSpecial) {
  const auto id_of_the = [&] {
    const auto text = open_text(folder_.path().string()).value();
    return text->tokenizer.encode("the", {.add_special_tokens = false}).value();
  };
  EXPECT_TRUE(open_text(folder_.path().string()).value()->eos_token.empty());
  folder_.write("special_tokens_map.json", R"({"eos_token": "<eos>", "cls_token": "the"})");
  const auto text = open_text(folder_.path().string()).value();
  EXPECT_EQ(text->eos_token, "<eos>");
  ASSERT_EQ(id_of_the().size(), 1U);
  EXPECT_TRUE(text->tokenizer.is_special(id_of_the().front()));
}

// A copy of the demo model, whose config names one end.
class CopiedFolder : public ::testing::Test {
 protected:
  CopiedFolder() {
    const std::filesystem::path model = QUIRE_SOURCE_DIR "/models/cardfile/model";
    for (const auto& entry : std::filesystem::directory_iterator(model)) {
      std::filesystem::copy_file(entry.path(), folder_.path() / entry.path().filename());
    }
  }

  auto load() {
    const kernels::KernelContext context{.table = &kernels::kernels_for(device::best_isa()),
                                         .pool = &pool_};
    return open_model(context, folder_.path().string(), {}).value();
  }
  [[nodiscard]] std::string spelled(TokenId id) const {
    return open_text(folder_.path().string()).value()->tokenizer.id_to_token(id).value();
  }

  weights::testing::TempFolder folder_;
  device::ThreadPool pool_{1};
};

// vLLM and mlx-lm stop at the tokenizer's token, too.
TEST_F(CopiedFolder, ItsEndsAreAllThatAnySourceNames) {
  const std::vector<TokenId> stated = load().eos_token_ids;
  folder_.write("generation_config.json", R"({"eos_token_id": [300, 301]})");
  std::filesystem::remove(folder_.path() / "special_tokens_map.json");  // names them, too
  folder_.write("tokenizer_config.json", R"({"eos_token": ")" + spelled(310) + R"(",
      "eot_token": ")" + spelled(311) + R"(", "eom_token": ")" +
                                             spelled(312) + "\"}");
  std::vector<TokenId> wanted = stated;
  wanted.insert(wanted.end(), {300, 301, 310, 311, 312});
  EXPECT_THAT(load().eos_token_ids, UnorderedElementsAreArray(wanted));
}

TEST_F(CopiedFolder, ItsEndsAreThoseOfAnyChoiceOfSources) {
  const std::map<TokenId, std::string> spelled_ends = {
      {310, spelled(310)}, {311, spelled(311)}, {312, spelled(312)}, {313, spelled(313)}};
  const auto token = [&](TokenId id) { return "\"" + spelled_ends.at(id) + "\""; };
  std::optional<std::vector<TokenId>> of_config;
  std::mt19937 random(4);
  for (int round = 0; round < 12; ++round) {
    const unsigned chosen = round == 0 ? 0U : static_cast<unsigned>(random() % 32U);
    std::vector<TokenId> wanted;
    const auto has = [&](unsigned bit, TokenId id) {
      const bool is_chosen = (chosen >> bit & 1U) == 1U;
      if (is_chosen) {
        wanted.push_back(id);
      }
      return is_chosen;
    };
    folder_.write("generation_config.json", has(0, 300) ? R"({"eos_token_id": 300})" : "{}");
    std::string config = R"({"tokenizer_class": "PreTrainedTokenizerFast")";
    config += has(1, 310) ? R"(, "eos_token": )" + token(310) : "";
    config += has(2, 311) ? R"(, "eot_token": )" + token(311) : "";
    config += has(3, 312) ? R"(, "eom_token": )" + token(312) : "";
    folder_.write("tokenizer_config.json", config + "}");
    const bool in_map = (chosen & 2U) == 0 && has(4, 313);  // one spelling of the tokenizer's end
    folder_.write("special_tokens_map.json",
                  in_map ? R"({"eos_token": )" + token(313) + "}" : "{}");
    const std::vector<TokenId> ends = load().eos_token_ids;
    of_config = of_config ? of_config : ends;
    wanted.insert(wanted.end(), of_config->begin(), of_config->end());
    EXPECT_THAT(ends, UnorderedElementsAreArray(wanted)) << config << chosen;
  }
}

TEST_F(CopiedFolder, AModelThatIsCutWhileItIsLoadedIsAnError) {
  const std::filesystem::path weights = folder_.path() / "model.safetensors";
  const kernels::KernelContext context{.table = &kernels::kernels_for(device::best_isa()),
                                       .pool = &pool_};
  BundleOptions options;
  options.progress = [&](double) { std::filesystem::resize_file(weights, 1 << 20); };
  const auto bundle = open_model(context, folder_.path().string(), options);
  ASSERT_FALSE(bundle.ok());
  EXPECT_EQ(bundle.error().code, ErrorCode::kIo);
  EXPECT_THAT(bundle.error().message, HasSubstr("model.safetensors was cut while it was read"));
}

TEST(FolderConfig, AnErrorNamesTheFileThatIsBroken) {
  weights::testing::TempFolder folder;
  const std::filesystem::path model = QUIRE_SOURCE_DIR "/models/cardfile/model";
  std::filesystem::copy_file(model / "config.json", folder.path() / "config.json");
  const auto message = [&] {
    const auto config = read_config(folder.path().string());
    return config.ok() ? std::string("accepted") : config.error().message;
  };
  EXPECT_EQ(message(), "accepted");
  folder.write("generation_config.json", "");
  EXPECT_EQ(message(), "accepted");
  folder.write("generation_config.json", "{");
  EXPECT_THAT(message(), StartsWith((folder.path() / "generation_config.json: not").string()));
  folder.write("config.json", "{");
  EXPECT_THAT(message(), StartsWith((folder.path() / "config.json: not").string()));
  std::filesystem::remove(folder.path() / "config.json");
  ASSERT_EQ(::mkfifo((folder.path() / "config.json").c_str(), 0600), 0);
  EXPECT_THAT(message(), HasSubstr("config.json: not a regular file"));
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
  EXPECT_TRUE(read_config(folder.path().string()).ok());
  folder.write("adapter_config.json", R"({"peft_type": "LORA"})");
  const auto config = read_config(folder.path().string());
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(config.error().message, HasSubstr("adapter_config.json"));
  EXPECT_THAT(config.error().message, HasSubstr("merge_and_unload"));
}

}  // namespace
}  // namespace quire::engine
