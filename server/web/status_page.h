// The status page, as it is sent: server/web/status_page.html.

#pragma once

#include <string_view>

namespace ckv {

// Below 64 KB, and complete: no part of it is loaded from elsewhere.
extern const std::string_view kStatusPage;

}  // namespace ckv
