// A profile of ckvctl plan corpus to begin with.

#pragma once

namespace ckv::ctl {

// Every key that a profile has, with a comment. Its constants are published figures, its prices are
// not.
extern const char* const kCorpusExampleProfile;

}  // namespace ckv::ctl
