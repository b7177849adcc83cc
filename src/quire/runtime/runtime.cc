#include "quire/runtime/runtime.h"

#include <memory>
#include <string>
#include <utility>

#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/result.h"

namespace quire::runtime {

Result<std::shared_ptr<Runtime>> Runtime::start(const std::string& model,
                                                const engine::EngineOptions& options) {
  QUIRE_TRY(auto engine, engine::Engine::open(model, options));
  const std::shared_ptr<Runtime> runtime(new Runtime(std::move(engine)), [](Runtime* made) {
    if (!made->engine().home().left()) {
      delete made;
    }
  });
  runtime->engine().attach(engine_of(runtime), {.kv_gate = &runtime->tiers_.background_loads(),
                                                .holders = &runtime->chunks_,
                                                .listeners = {&runtime->tiers_.reload_policy()}});
  QUIRE_TRY_STATUS(runtime->chunks_.library().open());
  QUIRE_TRY_STATUS(runtime->engine().start());
  runtime->engine().tell_opened(model);
  return runtime;
}

Runtime::Runtime(std::unique_ptr<engine::Engine> engine)
    : engine_(std::move(engine)),
      tiers_(*engine_),
      chunks_(*engine_, tiers_, engine_->options().chunks),
      sequences_(*engine_, chunks_, tiers_),
      saved_sequences_(*engine_, tiers_, sequences_) {}

void Runtime::close() {
  if (engine_->close()) {
    tiers_.stop();             // its tasks need the mailbox
    chunks_.library().stop();  // before the last one who holds the engine lets it go
  }
}

std::shared_ptr<engine::Engine> engine_of(const std::shared_ptr<Runtime>& runtime) {
  return {runtime, &runtime->engine()};
}

}  // namespace quire::runtime
