export default function FormatsView() { return <div className="empty">…</div>; }
