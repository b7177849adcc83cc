// Scrapes of the metrics, on the main listener and on one of their own.
#pragma once

#include <memory>

#include "api/call.h"
#include "message.h"

namespace quire::server {

// Answers with the metrics within a few milliseconds, whatever the engine does.
void scrape(Services& services, const std::shared_ptr<Answer>& answer);

}  // namespace quire::server
