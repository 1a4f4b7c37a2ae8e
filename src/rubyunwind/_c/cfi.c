/* SPDX-License-Identifier: Apache-2.0 */
#include "cfi.h"

int cfi_version(void) { return 1; }
