// Errors as the engine sends them.

import type { ErrorInfo } from '../../../ui/src/lib/ipc/schema.gen';

/** An error with its English message, and the values that the window inserts into its words. */
export function refusal(code: ErrorInfo['code'], message: string, params: ErrorInfo['params'] = {}): ErrorInfo {
  return { code, message, params };
}
