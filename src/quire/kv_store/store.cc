#include "quire/kv_store/store.h"

#include <filesystem>
#include <utility>

#include "quire/kv_store/store_core.h"
#include "quire/result.h"

namespace quire::kv_store {

Result<Store> Store::open(const std::filesystem::path& path, StoreOptions options) {
  QUIRE_TRY(StoreCore core, StoreCore::open(path, std::move(options)));
  return Store(std::move(core));
}

}  // namespace quire::kv_store
