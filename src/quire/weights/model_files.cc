#include "quire/weights/model_files.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/base/folder_names.h"
#include "quire/base/json.h"
#include "quire/base/mapped_file.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"
#include "quire/weights/quantised_folder.h"
#include "quire/weights/safetensors.h"

namespace quire::weights {
namespace {

namespace fs = std::filesystem;
using base::str_cat;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::size_t kMaxIndexBytes = std::size_t{64} << 20;

// The tensors of each shard, as the index says; shards sorted.
using ShardMap = std::map<std::string, std::vector<std::string>, std::less<>>;

// Tells whether a name has no path in it. A shard lies in the folder itself: a path could reach any
// file of the machine.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Result<ShardMap> read_index(const fs::path& path) {
  QUIRE_TRY(const std::string text, base::read_file(path, kMaxIndexBytes));
  auto parsed = base::parse_model_json(text, path.string());
  if (!parsed.ok()) {
    return {ErrorCode::kCorrupt, parsed.error().message};
  }
  const base::JsonView map = parsed->view().find("weight_map");
  if (!map.is_object() || map.size() == 0) {
    return {ErrorCode::kCorrupt,
            str_cat(path.string(), ": weight_map must be an object with at least one tensor")};
  }
  ShardMap shards;
  for (const auto [tensor, shard] : map.members()) {
    if (!shard.is_string() || !is_plain_name(shard.as_string())) {
      return {ErrorCode::kCorrupt,
              str_cat(path.string(), ": tensor ", base::quoted(tensor),
                      " must be mapped to the name of a file in the same folder, not to ",
                      base::quoted(base::write_json(shard)))};
    }
    shards[std::string(shard.as_string())].emplace_back(tensor);
  }
  return shards;
}

// Checks that the shard holds exactly the tensors that the index places there, so that no tensor is
// missing and none is in two shards.
Status check_shard(const TensorTable& table, std::vector<std::string> listed,
                   const fs::path& path) {
  std::vector<std::string> held;
  std::ranges::transform(table.tensors, std::back_inserter(held), &TensorInfo::name);
  std::ranges::transform(table.unsupported, std::back_inserter(held), &UnsupportedTensor::name);
  std::ranges::sort(held);
  std::ranges::sort(listed);
  std::vector<std::string> differing;
  std::ranges::set_symmetric_difference(held, listed, std::back_inserter(differing));
  if (differing.empty()) {
    return {};
  }
  const bool missing = std::ranges::find(listed, differing.front()) != listed.end();
  return {ErrorCode::kCorrupt,
          str_cat(path.string(), ": tensor ", base::quoted(differing.front()),
                  missing ? " is missing, though " : " is here, but not according to ", kIndexFile,
                  missing ? " places it here" : "")};
}

// Returns the GGUF files of a folder, sorted: by name or, for blobs and other names, by content.
Result<std::vector<fs::path>> gguf_files(const fs::path& folder) {
  std::vector<fs::path> files;
  QUIRE_TRY_STATUS(base::for_each_name(folder, [&](const std::string& name) {
    const fs::path file = folder / name;
    if (std::error_code unknown; !fs::is_directory(file, unknown) && is_gguf_file(file)) {
      files.push_back(file);
    }
  }));
  std::ranges::sort(files);
  return files;
}

bool is_there(const fs::path& path) {
  std::error_code failure;
  return fs::exists(path, failure);
}

Error nothing_found(const fs::path& folder) {
  for (const char* pickled : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (is_there(folder / pickled)) {
      return {.code = ErrorCode::kUnsupported,
              .message = str_cat(folder.string(), ": holds only pickled weights (", pickled,
                                 "), which can run code when read; convert them to safetensors")};
    }
  }
  return {.code = ErrorCode::kIo,
          .message = str_cat(folder.string(), ": holds neither ", kSingleFile, ", ", kIndexFile,
                             " nor a GGUF file"),
          .system_error = ENOENT};
}

// Lists the types that are decoded.
std::string supported_types() {
  std::string list;
  for (int i = 0; i < kFileEncodings; ++i) {
    list += i == 0 ? "" : i + 1 == kFileEncodings ? " and " : ", ";
    list += encoding_name(static_cast<Encoding>(i));
  }
  return list;
}

}  // namespace

bool is_gguf_file(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".gguf" || base::file_begins_with(path, "GGUF");
}

struct ModelFiles::Impl {
  std::string path;
  std::vector<base::MappedFile> files;  // their headers are read through the mapping
  std::vector<std::unique_ptr<TensorFile>> tensor_files;  // each beside its own in `files`
  std::unique_ptr<GgufFile> gguf;                         // nullptr for safetensors
  TensorTable table;
  std::unordered_map<std::string_view, const TensorInfo*> by_name;  // into table.tensors
  std::int64_t total_bytes = 0;
  QuantisedFolder quantised;  // matrices that lie in several tensors

  Status map(const fs::path& file);
  // Lets the tensors of the file mapped last be read from it.
  void attach(TensorTable& of_last) const;
  Result<TensorTable> map_safetensors(const fs::path& file);
  Status open_safetensors(const fs::path& file);
  Status open_shards(const fs::path& folder);
  Status open_gguf(const fs::path& file);
  Status open_folder(const fs::path& folder);
  void index_tensors();
};

Status ModelFiles::Impl::map(const fs::path& file) {
  QUIRE_TRY(base::OpenFile opened, base::OpenFile::open(file));
  QUIRE_TRY(base::MappedFile mapped,
            base::MappedFile::map(opened.get(), file, base::MappedUse::kOnce));
  files.push_back(std::move(mapped));
  tensor_files.push_back(std::make_unique<TensorFile>(std::move(opened)));
  return {};
}

void ModelFiles::Impl::attach(TensorTable& of_last) const {
  const auto attach_to = [&](auto& tensor) {
    tensor.file = tensor_files.back().get();
    tensor.offset = static_cast<std::uint64_t>(tensor.bytes.data() - files.back().bytes().data());
  };
  std::ranges::for_each(of_last.tensors, attach_to);
  for (StoredTensor& tensor : of_last.unsupported) {
    if (tensor.bytes.data() != nullptr) {
      attach_to(tensor);
    }
  }
}

Result<TensorTable> ModelFiles::Impl::map_safetensors(const fs::path& file) {
  QUIRE_TRY_STATUS(map(file));
  QUIRE_TRY(TensorTable parsed, parse_safetensors(files.back().bytes(), file.string()));
  attach(parsed);
  return parsed;
}

Status ModelFiles::Impl::open_safetensors(const fs::path& file) {
  QUIRE_TRY(table, map_safetensors(file));
  return {};
}

Status ModelFiles::Impl::open_shards(const fs::path& folder) {
  QUIRE_TRY(const ShardMap shards, read_index(folder / kIndexFile));
  for (const auto& [name, listed] : shards) {
    QUIRE_TRY(TensorTable shard, map_safetensors(folder / name));
    QUIRE_TRY_STATUS(check_shard(shard, listed, folder / name));
    std::ranges::move(shard.tensors, std::back_inserter(table.tensors));
    std::ranges::move(shard.unsupported, std::back_inserter(table.unsupported));
  }
  return {};
}

Status ModelFiles::Impl::open_gguf(const fs::path& file) {
  QUIRE_TRY_STATUS(map(file));
  QUIRE_TRY(GgufFile parsed, GgufFile::parse(files.back().bytes(), file.string()));
  gguf = std::make_unique<GgufFile>(std::move(parsed));
  QUIRE_TRY(const std::int64_t parts, gguf->get_int("split.count", 1));
  if (parts > 1) {
    return {ErrorCode::kUnsupported, str_cat(file.string(), ": is one of ", parts,
                                             " parts; join them with llama-gguf-split --merge")};
  }
  table.tensors.assign(gguf->tensors().begin(), gguf->tensors().end());
  attach(table);
  table.unsupported.assign(gguf->unsupported().begin(), gguf->unsupported().end());
  return {};
}

Status ModelFiles::Impl::open_folder(const fs::path& folder) {
  if (is_there(folder / kSingleFile)) {
    return open_safetensors(folder / kSingleFile);
  }
  if (is_there(folder / kIndexFile)) {
    return open_shards(folder);
  }
  QUIRE_TRY(const std::vector<fs::path> ggufs, gguf_files(folder));
  if (ggufs.size() == 1) {
    return open_gguf(ggufs.front());
  }
  if (ggufs.empty()) {
    return nothing_found(folder);
  }
  std::string names;
  for (const fs::path& file : ggufs) {
    names += (names.empty() ? "" : ", ") + file.filename().string();
  }
  return {ErrorCode::kInvalidArgument,
          str_cat(folder.string(), ": holds ", ggufs.size(), " GGUF files, name one: ", names)};
}

void ModelFiles::Impl::index_tensors() {
  for (const TensorInfo& tensor : table.tensors) {
    by_name.emplace(tensor.name, &tensor);
    total_bytes += static_cast<std::int64_t>(tensor.bytes.size());
  }
}

Result<ModelFiles> ModelFiles::open(const std::string& name) {
  const fs::path path = name;
  auto impl = std::make_unique<Impl>();
  impl->path = name;
  std::error_code failure;
  if (!fs::exists(path, failure)) {
    return Error{.code = ErrorCode::kIo,
                 .message = str_cat("cannot open ", name, ": no such file or folder"),
                 .system_error = ENOENT};
  }
  if (fs::is_directory(path, failure)) {
    QUIRE_TRY_STATUS(impl->open_folder(path));
    if (impl->gguf == nullptr) {
      QUIRE_TRY_STATUS(impl->quantised.combine(path / "config.json", impl->table));
    }
  } else if (!is_gguf_file(name) && path.extension() == ".safetensors") {
    QUIRE_TRY_STATUS(impl->open_safetensors(path));
  } else {
    QUIRE_TRY_STATUS(impl->open_gguf(path));
  }
  impl->index_tensors();
  return ModelFiles(std::move(impl));
}

ModelFiles::ModelFiles(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelFiles::ModelFiles(ModelFiles&&) noexcept = default;
ModelFiles& ModelFiles::operator=(ModelFiles&&) noexcept = default;
ModelFiles::~ModelFiles() = default;

const TensorInfo* ModelFiles::find(std::string_view name) const {
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : found->second;
}

Result<const TensorInfo*> ModelFiles::require(std::string_view name) const {
  if (const TensorInfo* tensor = find(name)) {
    return tensor;
  }
  const auto known = std::ranges::find(impl_->table.unsupported, name, &UnsupportedTensor::name);
  if (known != impl_->table.unsupported.end()) {
    return {ErrorCode::kUnsupported,
            str_cat(impl_->path, ": tensor ", base::quoted(name), " has type ",
                    base::quoted(known->type), "; supported are ", supported_types())};
  }
  return {ErrorCode::kCorrupt,
          str_cat(impl_->path, ": tensor ", base::quoted(name), " is missing")};
}

std::span<const TensorInfo> ModelFiles::tensors() const { return impl_->table.tensors; }

std::span<const UnsupportedTensor> ModelFiles::unsupported() const {
  return impl_->table.unsupported;
}

std::int64_t ModelFiles::total_bytes() const { return impl_->total_bytes; }

std::vector<ModelFile> ModelFiles::files() const {
  std::vector<ModelFile> files;
  for (const base::MappedFile& file : impl_->files) {
    files.push_back({.path = file.path(),
                     .bytes = std::ssize(file.bytes()),
                     .modified_ns = file.modified_ns()});
  }
  return files;
}

Status ModelFiles::check_whole() const {
  for (std::size_t i = 0; i < impl_->files.size(); ++i) {
    if (impl_->tensor_files[i]->was_cut()) {
      return {ErrorCode::kIo, str_cat(impl_->files[i].path(),
                                      " was cut while it was read; load it again when it "
                                      "is whole")};
    }
  }
  return {};
}

const GgufFile* ModelFiles::gguf() const { return impl_->gguf.get(); }

}  // namespace quire::weights
