// Oracle of the golden files: the original libraries (tests/golden/weights/make_goldens.py).
#include "quire/weights/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/weights/gguf.h"
#include "quire/weights/test_files.h"

namespace quire::weights {
namespace {

using ::testing::HasSubstr;
using testing::safetensors;
using testing::TempFolder;

const std::filesystem::path kGolden =
    std::filesystem::path(QUIRE_SOURCE_DIR) / "tests" / "golden" / "weights";

boost::json::object expected(std::string_view file) {
  const auto text = base::read_file(kGolden / "expected.json");
  return boost::json::parse(text.value()).at(file).as_object();
}

// Expects every tensor with its encoding, shape and values, and no other.
void expect_golden(const ModelFiles& model_files, std::string_view file) {
  const boost::json::object golden = expected(file);
  EXPECT_EQ(model_files.tensors().size(), golden.size());
  for (const auto& [name, entry] : golden) {
    const TensorInfo* tensor = model_files.find({name.data(), name.size()});
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(encoding_name(tensor->encoding), entry.at("encoding").as_string()) << name;
    EXPECT_EQ(boost::json::value_from(tensor->shape), entry.at("shape")) << name;
    std::vector<float> values(static_cast<std::size_t>(tensor->num_values()));
    read_rows(*tensor, 0, tensor->rows(), values);
    const boost::json::array& bits = entry.at("bits").as_array();
    ASSERT_EQ(values.size(), bits.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), bits[i].to_number<std::uint32_t>())
          << name << "[" << i << "]";
    }
  }
}

Error open_error(const std::filesystem::path& path) {
  auto model_files = ModelFiles::open(path);
  EXPECT_FALSE(model_files.ok()) << path;
  return model_files.ok() ? Error{} : std::move(model_files).error();
}

TEST(ModelFiles, SingleSafetensorsFileEqualsTheOriginalLibrary) {
  const auto model_files = ModelFiles::open(kGolden / "single.safetensors");
  ASSERT_TRUE(model_files.ok()) << model_files.error().message;
  expect_golden(*model_files, "single.safetensors");
  EXPECT_EQ(model_files->gguf(), nullptr);
  ASSERT_EQ(model_files->unsupported().size(), 1u);
  EXPECT_EQ(model_files->unsupported()[0].name, "position_ids");
  EXPECT_EQ(model_files->unsupported()[0].type, "I64");
}

TEST(ModelFiles, ShardedFolderEqualsTheOriginalLibrary) {
  const auto model_files = ModelFiles::open(kGolden / "sharded");
  ASSERT_TRUE(model_files.ok()) << model_files.error().message;
  expect_golden(*model_files, "sharded");
  for (const ModelFile& file : model_files->files()) {
    EXPECT_EQ(file.bytes, static_cast<std::int64_t>(std::filesystem::file_size(file.path)));
    EXPECT_GT(file.modified_ns, 0);
  }
  EXPECT_EQ(model_files->files().size(), 2u);
  EXPECT_EQ(model_files->total_bytes(), 4 * 40 * 2 + 40 * 4 + 3 * 64 * 2);
}

TEST(ModelFiles, GgufTensorsEqualTheOriginalLibrary) {
  const auto model_files = ModelFiles::open(kGolden / "tiny.gguf");
  ASSERT_TRUE(model_files.ok()) << model_files.error().message;
  expect_golden(*model_files, "tiny.gguf");
  ASSERT_EQ(model_files->unsupported().size(), 1u);
  EXPECT_EQ(model_files->unsupported()[0].type, "Q8_K");
}

TEST(ModelFiles, GgufMetadataOfEveryTypeEqualsWhatWasWritten) {
  const auto model_files = ModelFiles::open(kGolden / "tiny.gguf");
  ASSERT_TRUE(model_files.ok()) << model_files.error().message;
  const GgufFile& gguf = *model_files->gguf();
  EXPECT_EQ(gguf.get_string("general.architecture", "").value(), "llama");
  EXPECT_EQ(gguf.get_int("int.u8", 0).value(), 250);
  EXPECT_EQ(gguf.get_int("int.i8", 0).value(), -5);
  EXPECT_EQ(gguf.get_int("int.u16", 0).value(), 65000);
  EXPECT_EQ(gguf.get_int("int.i16", 0).value(), -3000);
  EXPECT_EQ(gguf.get_int("int.u32", 0).value(), 4000000000);
  EXPECT_EQ(gguf.get_int("int.i32", 0).value(), -2000000000);
  EXPECT_EQ(gguf.get_int("int.u64", 0).value(), std::int64_t{1} << 62);
  EXPECT_EQ(gguf.get_int("int.i64", 0).value(), -(std::int64_t{1} << 62));
  EXPECT_EQ(gguf.get_double("float.f32", 0).value(), static_cast<double>(0.1f));
  EXPECT_EQ(gguf.get_double("float.f64", 0).value(), 0.1);
  EXPECT_TRUE(gguf.get_bool("flag", false).value());
  EXPECT_EQ(gguf.get_string("text", "").value(), "na\u00efve \U0001f600");
  EXPECT_EQ(*gguf.find_as<std::vector<std::int64_t>>("array.ints").value(),
            (std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(*gguf.find_as<std::vector<double>>("array.floats").value(),
            (std::vector<double>{0.5, -1.25}));
  EXPECT_EQ(*gguf.find_as<std::vector<std::int64_t>>("array.flags").value(),
            (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(*gguf.find_as<std::vector<std::string>>("array.texts").value(),
            (std::vector<std::string>{"a", "", "\u0120the"}));
}

// Through a mapping the first byte behind the cut would end the process by SIGBUS.
TEST(ModelFiles, AFileThatIsCutWhileItIsReadIsNamedAndEndsNoProcess) {
  const TempFolder folder;
  const std::string header =
      R"({"t":{"dtype":"F16","shape":[512,1024],"data_offsets":[0,1048576]},)"
      R"("u":{"dtype":"F32","shape":[4],"data_offsets":[1048576,1048592]}})";
  folder.write("model.safetensors", safetensors(header) + std::string(1048592, '\x3c'));
  const auto model_files = ModelFiles::open(folder.path());
  ASSERT_TRUE(model_files.ok()) << model_files.error().message;
  const TensorInfo& tensor = *model_files->find("t");
  std::vector<float> before(512 * 1024);
  read_rows(tensor, 0, 512, before);
  EXPECT_TRUE(model_files->check_whole().ok());
  EXPECT_TRUE(is_same(tensor, tensor));
  EXPECT_FALSE(is_same(tensor, *model_files->find("u")));
  std::filesystem::resize_file(folder.path() / "model.safetensors", 1 << 16);
  std::vector<float> first(1024);
  read_rows(tensor, 0, 1, first);
  EXPECT_TRUE(model_files->check_whole().ok());
  EXPECT_EQ(first.front(), before.front());
  std::vector<float> after(512 * 1024);
  read_rows(tensor, 0, 512, after);
  const Status cut = model_files->check_whole();
  ASSERT_FALSE(cut.ok());
  EXPECT_EQ(cut.error().code, ErrorCode::kIo);
  EXPECT_EQ(cut.error().message, (folder.path() / "model.safetensors").string() +
                                     " was cut while it was read; load it again when it is whole");
}

TEST(ModelFiles, RequireTellsMissingFromUnsupported) {
  const auto model_files = ModelFiles::open(kGolden / "tiny.gguf");
  ASSERT_TRUE(model_files.ok());
  EXPECT_TRUE(model_files->require("q8_0").ok());
  const auto unsupported = model_files->require("q8_k");
  ASSERT_FALSE(unsupported.ok());
  EXPECT_EQ(unsupported.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(unsupported.error().message, HasSubstr("\"q8_k\" has type \"Q8_K\""));
  for (const char* type : {"F16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}) {
    EXPECT_THAT(unsupported.error().message, HasSubstr(type));
  }
  const auto missing = model_files->require("nothing");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(missing.error().message, HasSubstr("tiny.gguf: tensor \"nothing\" is missing"));
}

TEST(ModelFiles, FolderWithOneGgufOpensItAndWithSeveralNamesThem) {
  const TempFolder folder;
  const std::string gguf = base::read_file(kGolden / "tiny.gguf").value();
  folder.write("b.gguf", gguf);
  EXPECT_TRUE(ModelFiles::open(folder.path()).ok());
  folder.write("a.gguf", gguf);
  const Error error = open_error(folder.path());
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("2 GGUF files, name one: a.gguf, b.gguf"));
}

// Blobs of Ollama and of caches have no extension; other systems write it in capitals.
TEST(ModelFiles, AGgufFileIsKnownByItsContentOrItsExtensionInAnyCase) {
  const TempFolder folder;
  const std::string gguf = base::read_file(kGolden / "tiny.gguf").value();
  for (const char* name : {"sha256-0123abcd", "X.GGUF", "model.Gguf", "a.bin"}) {
    folder.write(name, gguf);
    EXPECT_TRUE(is_gguf_file(folder.path() / name)) << name;
    const auto model_files = ModelFiles::open(folder.path() / name);
    ASSERT_TRUE(model_files.ok()) << model_files.error().message;
    EXPECT_NE(model_files->gguf(), nullptr) << name;
  }
  folder.write("page.gguf", "<!DOCTYPE html>");
  EXPECT_THAT(open_error(folder.path() / "page.gguf").message, HasSubstr("is this a GGUF file?"));
  folder.write("short", "GGU");
  EXPECT_FALSE(is_gguf_file(folder.path() / "short"));
  EXPECT_FALSE(is_gguf_file(folder.path() / "absent"));
}

TEST(ModelFiles, AFolderWithOneBlobOpensIt) {
  const TempFolder folder;
  folder.write("sha256-0123abcd", base::read_file(kGolden / "tiny.gguf").value());
  folder.write("sha256-params", R"({"stop": ["x"]})");
  std::filesystem::create_directory(folder.path() / "cache.gguf");
  const auto model_files = ModelFiles::open(folder.path());
  ASSERT_TRUE(model_files.ok()) << model_files.error().message;
  EXPECT_EQ(model_files->files().front().path, (folder.path() / "sha256-0123abcd").string());
}

TEST(ModelFiles, FoldersWithoutWeightsSayWhatIsMissing) {
  const TempFolder folder;
  EXPECT_EQ(open_error(folder.path() / "absent").code, ErrorCode::kIo);
  EXPECT_EQ(open_error(folder.path()).code, ErrorCode::kIo);
  folder.write("pytorch_model.bin", "x");
  const Error error = open_error(folder.path());
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("convert them to safetensors"));
}

TEST(ModelFiles, SplitGgufIsRefusedWithTheWayOut) {
  const TempFolder folder;
  testing::GgufBuilder gguf;
  gguf.key("split.count", 2, testing::raw<std::uint16_t>(3));
  folder.write("model.gguf", gguf.build());
  const Error error = open_error(folder.path());
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("one of 3 parts"));
}

// Returns the error of a folder with two shards of one F32 tensor each, "a" and "b", and this
// index.
Error sharded_error(const std::string& index) {
  const TempFolder folder;
  const auto shard = [](const std::string& name) {
    return safetensors(R"({")" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                       4);
  };
  folder.write("one.safetensors", shard("a"));
  folder.write("two.safetensors", shard("b"));
  folder.write("again.safetensors", shard("a"));
  folder.write("model.safetensors.index.json", index);
  return open_error(folder.path());
}

TEST(ModelFiles, IndexesThatLieAreRefused) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "index.json"},
      {"{", "not valid JSON"},
      {"[]", "weight_map must be an object"},
      {R"({"metadata":{}})", "weight_map must be an object"},
      {R"({"weight_map":{}})", "at least one tensor"},
      {R"({"weight_map":["a"]})", "weight_map must be an object"},
      {R"({"weight_map":{"a":1}})", "tensor \"a\" must be mapped"},
      {R"({"weight_map":{"a":""}})", "in the same folder"},
      {R"({"weight_map":{"a":".."}})", "in the same folder"},
      {R"({"weight_map":{"a":"../one.safetensors"}})", "in the same folder"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "in the same folder"},
      {R"({"weight_map":{"a":"sub/one.safetensors"}})", "in the same folder"},
      {R"({"weight_map":{"a":"..\\one.safetensors"}})", "in the same folder"},
      {R"({"weight_map":{"a":"one.safetensors\u0000"}})", "in the same folder"},
      {R"({"weight_map":{"a":"one.safetensors","b":"three.safetensors"}})", "three.safetensors"},
      {R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})", "\"b\" is missing"},
      {R"({"weight_map":{"b":"one.safetensors"}})", "\"a\" is here, but not according to"},
      {R"({"weight_map":{"a":"one.safetensors","b":"again.safetensors"}})", "\"a\" is here"},
  };
  for (const auto& [index, message] : cases) {
    const Error error = sharded_error(index);
    EXPECT_THAT(error.message, HasSubstr(message)) << index;
    EXPECT_THAT(error.message, HasSubstr("safetensors")) << index;
  }
}

TEST(ModelFiles, ErrorsNameFileAndTensor) {
  const TempFolder folder;
  folder.write("model.safetensors",
               safetensors(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4));
  const Error error = open_error(folder.path());
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("model.safetensors: tensor \"t\""));
  EXPECT_THAT(error.message, HasSubstr("truncated"));
}

TEST(ModelFiles, EmptyFilesAndFoldersInPlaceOfFilesAreRefused) {
  const TempFolder folder;
  folder.write("empty.gguf", "");
  EXPECT_THAT(open_error(folder.path() / "empty.gguf").message, HasSubstr("empty.gguf"));
  std::filesystem::create_directory(folder.path() / "model.safetensors");
  EXPECT_THAT(open_error(folder.path()).message, HasSubstr("is a directory"));
}

}  // namespace
}  // namespace quire::weights
