#include "api/metrics.h"

namespace quire::server {

struct Metrics::Impl {};
Metrics::Metrics(std::string) : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;
void Metrics::set_model(const std::string&, std::int64_t, std::int64_t) {}
void Metrics::observe_run(const GenerationPlan&, const std::vector<ChoiceState>&, const RunReport&) {}
void Metrics::observe_gap(double, std::int64_t) {}
void Metrics::count_rejection(int, std::string_view) {}
void Metrics::count_abort(Gone) {}
void Metrics::count_ignored(const std::vector<std::string>&) {}
void Metrics::count_reload(bool) {}
void Metrics::observe(const AccessRecord&) {}
std::string Metrics::text(const Gauges&) { return {}; }

}  // namespace quire::server
