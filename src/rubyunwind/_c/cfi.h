/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <stddef.h>

#include "types.h"

#include "cfi.cdef"
