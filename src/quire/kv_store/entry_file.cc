// The file: a preamble, what the entry says, and its objects whole, each at a page.
#include "quire/kv_store/entry_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/byte_codec.h"
#include "quire/kv_store/file_front.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entries.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_layout.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;
constexpr std::size_t kRangeBytes = 4 + 8 + 8;
constexpr std::size_t kObjectBytes = kHashDigits + 8;

struct PackedObject {
  std::string hash;
  std::int64_t bytes = 0;
};

// The header of an entry file.
struct Manifest {
  StoreEntry entry;
  std::vector<PackedObject> objects;
};

std::vector<std::byte> encode(const Manifest& manifest) {
  const StoreEntry& entry = manifest.entry;
  std::map<std::string_view, std::uint32_t> places;
  ByteWriter out(kHashDigits);
  out.put_text(entry.key);
  out.put(static_cast<std::uint32_t>(entry.kind));
  out.put(entry.created_ms);
  out.put(static_cast<std::uint32_t>(entry.name.size()));
  out.put(static_cast<std::uint32_t>(entry.metadata_json.size()));
  out.put(static_cast<std::uint32_t>(manifest.objects.size()));
  out.put(static_cast<std::uint32_t>(entry.parts.size()));
  out.put_text(entry.name);
  out.put_text(entry.metadata_json);
  for (const PackedObject& object : manifest.objects) {
    places.emplace(object.hash, static_cast<std::uint32_t>(places.size()));
    out.put_text(object.hash);
    out.put(object.bytes);
  }
  for (const ObjectRange& range : entry.parts) {
    out.put(places.at(range.object));
    out.put(range.first_token);
    out.put(range.tokens);
  }
  return std::move(out).take();
}

Result<Manifest> decode(std::span<const std::byte> bytes) {
  const Error damaged{.code = ErrorCode::kCorrupt, .message = "its list of objects is damaged"};
  ByteReader in(bytes);
  Manifest manifest;
  manifest.entry.key = in.get_text(kHashDigits);
  const auto kind = in.get<std::uint32_t>();
  manifest.entry.created_ms = in.get<std::int64_t>();
  const auto name_bytes = in.get<std::uint32_t>();
  const auto metadata_bytes = in.get<std::uint32_t>();
  const auto num_objects = in.get<std::uint32_t>();
  const auto num_parts = in.get<std::uint32_t>();
  manifest.entry.name = in.get_text(name_bytes);
  manifest.entry.metadata_json = in.get_text(metadata_bytes);
  if (!in.holds(num_objects, kObjectBytes) ||
      kind > static_cast<std::uint32_t>(EntryKind::kCheckpoint)) {
    return damaged;
  }
  manifest.entry.kind = static_cast<EntryKind>(kind);
  for (std::uint32_t i = 0; i < num_objects; ++i) {
    PackedObject object{.hash = in.get_text(kHashDigits), .bytes = in.get<std::int64_t>()};
    if (!is_hash(object.hash) || object.bytes < 0) {
      return damaged;
    }
    manifest.objects.push_back(std::move(object));
  }
  if (!in.holds(num_parts, kRangeBytes)) {
    return damaged;
  }
  for (std::uint32_t i = 0; i < num_parts; ++i) {
    const auto place = in.get<std::uint32_t>();
    if (place >= num_objects) {
      return damaged;
    }
    manifest.entry.parts.push_back({.object = manifest.objects[place].hash,
                                    .first_token = in.get<std::int64_t>(),
                                    .tokens = in.get<std::int64_t>()});
  }
  if (in.failed() || in.left() != 0) {
    return damaged;
  }
  if (const Status checked = check_entry(manifest.entry); !checked.ok()) {
    return {ErrorCode::kCorrupt, checked.error().message};
  }
  return manifest;
}

// Returns where each object begins, and behind the last one the size of the file. kCorrupt for
// sizes that no file of `limit` bytes can have.
Result<std::vector<std::int64_t>> place_objects(const std::vector<PackedObject>& objects,
                                                std::size_t header_bytes, std::int64_t limit) {
  std::vector<std::int64_t> offsets;
  auto end = static_cast<std::int64_t>(kPreambleBytes + header_bytes);
  for (const PackedObject& object : objects) {
    end = round_up_to_page(end);
    offsets.push_back(end);
    if (object.bytes > limit || end > limit - object.bytes) {
      return {ErrorCode::kCorrupt, base::str_cat("object ", object.hash, " of ", object.bytes,
                                                 " bytes goes beyond the end")};
    }
    end += object.bytes;
  }
  offsets.push_back(end);
  return offsets;
}

// An open entry file whose every byte was looked at.
struct Package {
  Descriptor file;
  Manifest manifest;
  std::vector<std::int64_t> offsets;  // offsets of the objects
};

Error in_file(const std::filesystem::path& path, const Error& error) {
  return {.code = error.code, .message = base::str_cat(path.string(), ": ", error.message)};
}

// Opens the object that is a range of `file`. Checks that it is whole, and the one that it is said
// to be.
Result<KVFile> open_whole(Descriptor file, const FileRange& range, const std::string& hash,
                          const std::filesystem::path& path) {
  QUIRE_TRY(KVFile object, KVFile::open(std::move(file), range, path));
  if (object.content().object_hash != hash) {
    return {ErrorCode::kCorrupt,
            base::str_cat(path.string(), ": object ", hash, " is another one")};
  }
  QUIRE_TRY_STATUS(object.verify());
  return object;
}

Result<Package> open_package(const std::filesystem::path& path) {
  Package package;
  QUIRE_TRY(package.file, open_file(path));
  QUIRE_TRY(const FileFront front, read_front(FileKind::kEntry, package.file, path));
  auto manifest = decode(front.header);
  if (!manifest.ok()) {
    return in_file(path, manifest.error());
  }
  package.manifest = std::move(manifest).value();
  const auto& objects = package.manifest.objects;
  auto offsets = place_objects(objects, front.header.size(), front.file_bytes);
  if (!offsets.ok() || offsets->back() != front.file_bytes) {
    return in_file(path, offsets.ok() ? Error{.code = ErrorCode::kCorrupt,
                                              .message = "its size is not that of its objects"}
                                      : offsets.error());
  }
  package.offsets = std::move(offsets).value();
  auto end = static_cast<std::int64_t>(kPreambleBytes + front.header.size());
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const FileRange range{.offset = package.offsets[i], .bytes = objects[i].bytes};
    QUIRE_TRY_STATUS(check_padding(package.file, end, range.offset, path));
    QUIRE_TRY(Descriptor file, duplicate(package.file, path));
    QUIRE_TRY([[maybe_unused]] const KVFile object,
              open_whole(std::move(file), range, objects[i].hash, path));
    end = range.offset + range.bytes;
  }
  return package;
}

struct CopyPlace {
  const Descriptor& file;
  std::int64_t offset;
  const std::filesystem::path& path;
};

Status copy_bytes(const CopyPlace& from, const CopyPlace& to, std::int64_t bytes) {
  std::vector<std::byte> buffer(kCopyBytes);
  for (std::int64_t done = 0; done < bytes;) {
    const auto slice =
        std::span(buffer).first(std::min(kCopyBytes, static_cast<std::size_t>(bytes - done)));
    QUIRE_TRY_STATUS(read_at(from.file, slice, from.offset + done, from.path));
    QUIRE_TRY_STATUS(write_at(to.file, slice, to.offset + done, to.path));
    done += static_cast<std::int64_t>(slice.size());
  }
  return {};
}

}  // namespace

Status EntryFiles::export_object(const std::string& hash, const NewFile& to, std::int64_t offset,
                                 std::int64_t bytes) const {
  QUIRE_TRY(const Folder home, objects_.folder_of(hash, false));
  QUIRE_TRY(const Descriptor from, open_file(home, object_file_name(hash)));
  return copy_bytes({.file = from, .offset = 0, .path = home.path},
                    {.file = to.descriptor(), .offset = offset, .path = to.path()}, bytes);
}

Status EntryFiles::export_entry(std::string_view key, std::string_view tenant,
                                const std::filesystem::path& path) const {
  Manifest manifest;
  QUIRE_TRY(manifest.entry, entries_.get(key, tenant));
  for (const std::string& hash : objects_of(manifest.entry)) {
    QUIRE_TRY(const KVFile object, objects_.open(hash));
    QUIRE_TRY_STATUS(object.verify());
    manifest.objects.push_back({.hash = hash, .bytes = object.file_bytes()});
  }
  const std::vector<std::byte> header = encode(manifest);
  if (header.size() > kMaxHeaderBytes) {
    return {ErrorCode::kInvalidArgument, base::str_cat("cannot export: a header of ", header.size(),
                                                       " bytes, at most ", kMaxHeaderBytes)};
  }
  QUIRE_TRY(const auto offsets, place_objects(manifest.objects, header.size(),
                                              std::numeric_limits<std::int64_t>::max()));
  QUIRE_TRY(const FilePlace place, place_of(path));
  QUIRE_TRY(NewFile file, NewFile::create(place.folder, place.name));
  for (std::size_t i = 0; i < manifest.objects.size(); ++i) {
    const PackedObject& object = manifest.objects[i];
    QUIRE_TRY_STATUS(export_object(object.hash, file, offsets[i], object.bytes));
  }
  QUIRE_TRY_STATUS(write_front(FileKind::kEntry, header, offsets.back(), file));
  return file.commit(core_.options().write.sync);
}

Result<EntryContent> open_entry_file(const std::filesystem::path& path) {
  QUIRE_TRY(Package package, open_package(path));
  EntryContent content;
  for (std::size_t i = 0; i < package.manifest.objects.size(); ++i) {
    const FileRange range{.offset = package.offsets[i], .bytes = package.manifest.objects[i].bytes};
    QUIRE_TRY(Descriptor file, duplicate(package.file, path));
    QUIRE_TRY(KVFile object, KVFile::open(std::move(file), range, path));
    content.objects.push_back(std::move(object));
  }
  content.entry = std::move(package.manifest.entry);
  return content;
}

Status check_entry_file(const std::filesystem::path& path) {
  const auto package = open_package(path);
  return package.ok() ? Status() : Status(package.error());
}

Result<StoreEntry> EntryFiles::import_entry(const std::filesystem::path& path,
                                            std::string_view tenant) {
  QUIRE_TRY_STATUS(core_.check_writable());
  QUIRE_TRY(Package package, open_package(path));
  StoreEntry& entry = package.manifest.entry;
  for (std::size_t i = 0; i < package.manifest.objects.size(); ++i) {
    const PackedObject& object = package.manifest.objects[i];
    const FileRange range{.offset = package.offsets[i], .bytes = object.bytes};
    QUIRE_TRY_STATUS(import_object(package.file, range, object.hash, path));
  }
  entry.tenant = tenant;
  core_.allowance().revoke();  // whatever was copied
  if (const Status put = entries_.put(entry); !put.ok()) {
    return put.error().code == ErrorCode::kInvalidArgument
               ? in_file(path, {.code = ErrorCode::kCorrupt, .message = put.error().message})
               : put.error();
  }
  return entries_.get(entry.key, tenant);
}

Status EntryFiles::import_object(const Descriptor& from, const FileRange& range,
                                 const std::string& hash, const std::filesystem::path& path) {
  QUIRE_TRY(const Folder folder, objects_.folder_of(hash, true));
  const std::string name = object_file_name(hash);
  QUIRE_TRY(NewFile file, NewFile::create(folder, name));
  QUIRE_TRY_STATUS(copy_bytes({.file = from, .offset = range.offset, .path = path},
                              {.file = file.descriptor(), .offset = 0, .path = folder.path},
                              range.bytes));
  // Once more: the file may have been written to since it was looked at.
  QUIRE_TRY(Descriptor copy, file.reopen());
  QUIRE_TRY(const KVFile object,
            open_whole(std::move(copy), {.bytes = range.bytes}, hash, folder.path / name));
  return objects_.adopt(file, hash, object.content());
}

}  // namespace quire::kv_store
