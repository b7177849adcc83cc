#include "quire/diagnostics/saved_file.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "quire/base/json.h"
#include "quire/kv_store/entry_file.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/saved_states.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/state_view.h"

namespace quire {
namespace {

using base::Json;

// Returns nothing for folders, for what cannot be read and for files of others.
std::optional<kv_store::FileKind> kind_of(const std::string& path) {
  std::array<std::byte, kv_store::kPreambleBytes> begin;
  std::error_code error;
  const std::filesystem::path file(path);
  if (!std::filesystem::is_regular_file(file, error) ||
      std::filesystem::file_size(file, error) < begin.size()) {
    return std::nullopt;
  }
  const auto descriptor = kv_store::open_file(file);
  if (!descriptor.ok() || !kv_store::read_at(*descriptor, begin, 0, file).ok()) {
    return std::nullopt;
  }
  return kv_store::kind_of_file(begin);
}

const char* codec_name(kv_store::Codec codec) {
  switch (codec) {
    case kv_store::Codec::kRaw:
      return "raw";
    case kv_store::Codec::kPlanes:
      return "zstd";
    case kv_store::Codec::kLz4:
      return "lz4";
  }
  return "unknown";
}

Json section_of(const kv_store::KVFileContent& content, std::size_t run) {
  const kv_store::SavedRun& saved = content.runs[run];
  const tensor::KVGeometry geometry = content.geometry_of(run);
  const std::int64_t blocks = kv_store::head_blocks_of(geometry, saved).value_or(0);
  return Json::object({{"section", "kv"},
                       {"run", static_cast<std::int64_t>(run)},
                       {"start_position", saved.start_position},
                       {"tokens", static_cast<std::int64_t>(saved.tokens.size())},
                       {"lost_tokens", saved.lost_tokens(geometry.block_tokens)},
                       {"kv_dtype", kv_store::kv_type_name(kv_store::kv_type_of(geometry))},
                       {"bytes", blocks * content.head_block_bytes(run)}});
}

Json section_of(const kv_store::SavedStates& states, const kv_store::StateAt& at) {
  Json parts = Json::array();
  for (const tensor::StatePart& part : states.parts) {
    parts.push(Json::object({{"part", kv_store::part_name(part)}, {"bytes", part.bytes}}));
  }
  Json section = Json::object({{"section", "state"},
                               {"behind_tokens", at.tokens},
                               {"stays", at.stays},
                               {"bytes", states.bytes_of_one()}});
  section.set("parts", std::move(parts));
  return section;
}

// Adds what a KV file holds.
void add_kv(const kv_store::KVFile& file, Json& report) {
  const kv_store::KVFileContent& content = file.content();
  report.set("codec", codec_name(file.codec()));
  report.set("tokens", content.num_tokens());
  report.set("kv_dtype", kv_store::kv_type_name(kv_store::kv_type_of(content.geometry)));
  report.set("layers", content.geometry.layers);
  report.set("block_tokens", content.geometry.block_tokens);
  report.set("metadata_bytes", static_cast<std::int64_t>(content.metadata_json.size()));
  Json sections = Json::array();
  for (std::size_t run = 0; run < content.runs.size(); ++run) {
    sections.push(section_of(content, run));
  }
  for (const kv_store::StateAt& at : content.states.at) {
    sections.push(section_of(content.states, at));
  }
  report.set("sections", std::move(sections));
}

Status add_entry(const std::string& path, Json& report) {
  QUIRE_TRY(const kv_store::EntryContent content, kv_store::open_entry_file(path));
  report.set("key", content.entry.key);
  report.set("name", content.entry.name);
  report.set("entry_kind", kv_store::entry_kind_name(content.entry.kind));
  Json objects = Json::array();
  for (const kv_store::KVFile& file : content.objects) {
    Json object =
        Json::object({{"object", file.content().object_hash}, {"file_bytes", file.file_bytes()}});
    add_kv(file, object);
    objects.push(std::move(object));
  }
  report.set("objects", std::move(objects));
  return {};
}

}  // namespace

bool is_saved_file(const std::string& path) { return kind_of(path).has_value(); }

Result<std::string> saved_file_json(const std::string& path) {
  const std::optional<kv_store::FileKind> kind = kind_of(path);
  if (!kind) {
    return {ErrorCode::kInvalidArgument, path + " is no file that Quire has saved"};
  }
  std::error_code error;
  Json report = Json::object({{"file", path}});
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  if (*kind == kv_store::FileKind::kKV) {
    QUIRE_TRY(const kv_store::KVFile file, kv_store::KVFile::open(path));
    report.set("kind", file.content().object_hash.empty() ? "saved sequence" : "store object");
    report.set("file_bytes", bytes);
    add_kv(file, report);
    return base::write_json(report);
  }
  const bool is_entry = *kind == kv_store::FileKind::kEntry;
  report.set("kind", is_entry ? "store entry" : "packed weights");
  report.set("file_bytes", bytes);
  if (is_entry) {
    QUIRE_TRY_STATUS(add_entry(path, report));
  }
  return base::write_json(report);
}

}  // namespace quire
